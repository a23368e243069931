//! The names of the event types, as they stand in the journal and in a trace.
//!
//! The order is that of [`crate::Event`].

/// A chain begins. A chain of the CRA interface says only the agent and the goal.
pub const SESSION_STARTED: &str = "session.started";
/// An agent starts; the content is what a replay needs of it.
pub const AGENT_DESCRIBED: &str = "ckp.agent.described";
/// A tool was first looked at in this run; the content is what rules see of it.
pub const TOOL_DESCRIBED: &str = "ckp.tool.described";
/// A chain ends in order.
pub const SESSION_ENDED: &str = "session.ended";
/// The lifecycle moved (CKP §8).
pub const LIFECYCLE: &str = "ckp.lifecycle.transition";
/// An inbound message was accepted.
pub const MESSAGE_ACCEPTED: &str = "ckp.message.accepted";
/// A picture of the message that is accepted next; the content is the picture.
pub const MESSAGE_ATTACHED: &str = "ckp.message.attached";
/// What a model reads before the words of the next message; the content is that text.
pub const MESSAGE_FRAMED: &str = "ckp.message.framed";
/// The client's own tools that came with a message; they are the content.
pub const MESSAGE_TOOLS: &str = "ckp.message.tools";
/// A call of a client's own tool was handed to the client; it is the content.
pub const CLIENT_CALLED: &str = "ckp.client.called";
/// An inbound message was not accepted.
pub const MESSAGE_REFUSED: &str = "ckp.message.refused";
/// A message's turn ended.
pub const MESSAGE_ANSWERED: &str = "ckp.message.answered";
/// An interrupted turn goes on after a restart.
pub const MESSAGE_RESUMED: &str = "ckp.message.resumed";
/// A message's turn can't be finished; it is in the dead-letter box.
pub const MESSAGE_DEAD: &str = "ckp.message.dead";
/// A model looked for sentences of an answer that the record does not support.
pub const CLAIMS_JUDGED: &str = "ckp.claims.judged";
/// A person began anew: earlier messages leave the context and stay on the record.
pub const CONVERSATION_CLEARED: &str = "ckp.conversation.cleared";
/// A person chose which model answers the conversation's next messages, and how much it thinks.
pub const CONVERSATION_MODEL: &str = "ckp.conversation.model";
/// The loop guard ended a turn.
pub const TURN_STOPPED: &str = "ckp.turn.stopped";
/// An answer is about to be sent to its conversation.
pub const DELIVERY_STARTED: &str = "ckp.delivery.started";
/// An attempt to deliver an answer ended.
pub const DELIVERY_ENDED: &str = "ckp.delivery.ended";
/// An answer that could not be delivered is tried again.
pub const DELIVERY_REQUEUED: &str = "ckp.delivery.requeued";
/// A request to a model starts; the amounts are the reserved ones.
pub const PROVIDER_REQUESTED: &str = "ckp.provider.requested";
/// A model answered.
pub const PROVIDER_COMPLETED: &str = "ckp.provider.completed";
/// An attempt at a model failed.
pub const PROVIDER_FAILED: &str = "ckp.provider.failed";
/// Requests to an endpoint are written in another form, or smaller, than usual.
pub const PROVIDER_ADAPTED: &str = "ckp.provider.adapted";
/// A provider could not be reached after the start.
pub const PROVIDER_UNREACHABLE: &str = "ckp.provider.unreachable";
/// A limit passed its warning mark.
pub const BUDGET_WARNED: &str = "ckp.budget.warned";
/// A dry run ended; what its models cost counts against the agent's budgets.
pub const DRY_RUN_SPENT: &str = "ckp.budget.dry_run";
/// Somebody wants a tool to run.
pub const ACTION_REQUESTED: &str = "action.requested";
/// The call may run: the decision, durable before the effect.
pub const ACTION_APPROVED: &str = "action.approved";
/// The call may not run.
pub const ACTION_DENIED: &str = "action.denied";
/// The call ran.
pub const ACTION_EXECUTED: &str = "action.executed";
/// The call did not run, was cut short, or its outcome is unknown.
pub const ACTION_FAILED: &str = "action.failed";
/// An `audit-only` rule let a call pass.
pub const AUDIT: &str = "ckp.policy.audited";
/// The outcome of an effect that was unknown was found out.
pub const EFFECT_RESOLVED: &str = "ckp.effect.resolved";
/// A connection of a call was served.
pub const EGRESS_CONNECTED: &str = "ckp.egress.connected";
/// A connection of a call was refused, or cut for a reason.
pub const EGRESS_REFUSED: &str = "ckp.egress.refused";
/// Further connections of a call, as sums.
pub const EGRESS_SUMMED: &str = "ckp.egress.summed";
/// A person is asked.
pub const APPROVAL_REQUESTED: &str = "ckp.approval.requested";
/// The question was answered, or lapsed.
pub const APPROVAL_ANSWERED: &str = "ckp.approval.answered";
/// A fact that an approval was bound to changed before the run.
pub const APPROVAL_VOIDED: &str = "ckp.approval.voided";
/// A standing grant: later calls of that shape need no question.
pub const APPROVAL_GRANTED: &str = "ckp.approval.granted";
/// A standing grant ended.
pub const APPROVAL_REVOKED: &str = "ckp.approval.revoked";
/// An operator stopped the agent, or a session.
pub const STOP_ENGAGED: &str = "ckp.stop.engaged";
/// An operator lifted a stop.
pub const STOP_LIFTED: &str = "ckp.stop.lifted";
/// A person puts back what calls of the session overwrote; the content is the list.
pub const UNDO_STARTED: &str = "ckp.undo.started";
/// An undo is done.
pub const UNDO_ENDED: &str = "ckp.undo.ended";
/// Old messages left the model's view.
pub const CONTEXT_TRIMMED: &str = "ckp.context.trimmed";
/// The oldest turns left the context; the content is their summary and the list of replaced messages.
pub const CONTEXT_COMPACTED: &str = "ckp.context.compacted";
/// The agent wrote one of its context files.
pub const CONTEXT_WRITTEN: &str = "ckp.context.written";
/// A context file differs from the session's record of it; the content is its text.
pub const CONTEXT_READ: &str = "ckp.context.read";
/// A context got text of files that hold untrusted text of others.
pub const CONTEXT_TAINTED: &str = "ckp.context.tainted";
/// Secrets were found in a text.
pub const SCREEN_SECRET: &str = "ckp.screen.secret";
/// A text addresses the model over its operator's head.
pub const SCREEN_INJECTION: &str = "ckp.screen.injection";
/// A text is not valid input.
pub const SCREEN_INPUT: &str = "ckp.screen.input";
/// A model judged a text.
pub const SCREEN_JUDGED: &str = "ckp.screen.judged";
/// Contents of the session were erased.
pub const CONTENT_REDACTED: &str = "ckp.content.redacted";
/// Entries are to be stored: durable before they are.
pub const MEMORY_REQUESTED: &str = "ckp.memory.requested";
/// Entries were stored.
pub const MEMORY_STORED: &str = "ckp.memory.stored";
/// A store was asked.
pub const MEMORY_QUERIED: &str = "ckp.memory.queried";
/// Entries were recalled before a turn; the content is what was found.
pub const MEMORY_RECALLED: &str = "ckp.memory.recalled";
/// Retention removed entries for good.
pub const MEMORY_EXPIRED: &str = "ckp.memory.expired";
/// A store was compacted.
pub const MEMORY_COMPACTED: &str = "ckp.memory.compacted";
/// Entries were forgotten from outside of the agent.
pub const MEMORY_FORGOTTEN: &str = "ckp.memory.forgotten";
/// Entries that compaction had set aside came back.
pub const MEMORY_RESTORED: &str = "ckp.memory.restored";
/// A skill's instruction joined a turn.
pub const SKILL_INVOKED: &str = "ckp.skill.invoked";
/// A skill's result did not fit its `output_schema`; the model is asked once more.
pub const SKILL_REPAIRED: &str = "ckp.skill.repaired";
/// A skill ended: what it took, beside its estimates.
pub const SKILL_FINISHED: &str = "ckp.skill.finished";
/// What a skill's world model predicted, and what of it is followed; the content is everything that was weighed.
pub const WORLD_MODEL_PLANNED: &str = "ckp.world_model.planned";
/// What came of a plan, beside what was predicted.
pub const WORLD_MODEL_COMPARED: &str = "ckp.world_model.compared";
/// A task was given to the whole swarm.
pub const SWARM_RUN: &str = "ckp.swarm.run";
/// A try of a member at a task began or ended.
pub const SWARM_TRY: &str = "ckp.swarm.try";
/// A report was not accepted.
pub const SWARM_REFUSED: &str = "ckp.swarm.refused";
/// A member's circuit breaker changed.
pub const SWARM_CIRCUIT: &str = "ckp.swarm.circuit";
/// A task went to the dead-letter box.
pub const SWARM_DEAD_LETTERED: &str = "ckp.swarm.dead_lettered";
/// Answers became one.
pub const SWARM_AGGREGATED: &str = "ckp.swarm.aggregated";
/// A run ended.
pub const SWARM_ENDED: &str = "ckp.swarm.ended";
/// A host coordinates the swarm from now on.
pub const SWARM_LED: &str = "ckp.swarm.led";
/// A task was given to a peer. `peer`, `seat` and `task_hash`: written by the first versions only.
pub const SWARM_DELEGATED: &str = "ckp.swarm.delegated";
/// A task's end was reported. With `result_hash` it is a single peer's report, with `fact_hash` that of a team.
pub const SWARM_REPORTED: &str = "ckp.swarm.reported";
/// A message went to all peers.
pub const SWARM_BROADCAST: &str = "ckp.swarm.broadcast";
/// A channel did not let somebody or something in.
pub const CHANNEL_REFUSED: &str = "ckp.channel.refused";
/// A code was given out, approved or denied, or somebody's pairing was revoked.
pub const CHANNEL_PAIRING: &str = "ckp.channel.pairing";
/// A trigger began a run, or did not.
pub const CHANNEL_RUN: &str = "ckp.channel.run";
/// A push notification of a task was given up.
pub const PUSH_GIVEN_UP: &str = "ckp.push.given_up";
/// A CARP request came in. What was not given, or is the default, is left out.
pub const CARP_REQUEST: &str = "carp.request.received";
/// A CARP request was resolved.
pub const CARP_COMPLETED: &str = "carp.resolution.completed";
/// A CARP request was not answered as asked.
pub const ERROR_OCCURRED: &str = "error.occurred";
/// An Atlas judged one action.
pub const POLICY_EVALUATED: &str = "policy.evaluated";
/// An execution ran against a policy.
pub const POLICY_VIOLATED: &str = "policy.violated";
/// A context block reached its reader.
pub const CONTEXT_INJECTED: &str = "context.injected";
/// A context block was left out.
pub const CONTEXT_REDACTED: &str = "context.redacted";
/// The owner of a CRA session. The content is the goal, or with `about_hash` all that the opener said.
pub const CARP_SESSION: &str = "ckp.carp.session";
/// A resolution that may be executed under; the content is what execution asks about.
pub const CARP_ISSUED: &str = "ckp.carp.issued";
/// An execution used up part of the limits of Atlases.
pub const CARP_CHARGED: &str = "ckp.carp.charged";
/// A person's answer to an action that waited.
pub const CARP_ANSWERED: &str = "ckp.carp.answered";
/// An Atlas of the configuration is in force in this run; the content is what it was read from.
pub const ATLAS_DESCRIBED: &str = "ckp.atlas.described";
/// An Atlas came over the API.
pub const ATLAS_LOADED: &str = "ckp.atlas.loaded";
/// An Atlas was removed over the API.
pub const ATLAS_REMOVED: &str = "ckp.atlas.removed";
