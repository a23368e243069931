//! Event types.

/// A chain begins.
pub const SESSION_STARTED: &str = "session.started";
/// An agent starts; its content is what a replay needs of it: [`crate::replay::AgentFacts`].
pub const AGENT_DESCRIBED: &str = "ckp.agent.described";
/// A tool was first looked at in this run; its content is what rules see of it: [`crate::replay::ToolFacts`].
pub const TOOL_DESCRIBED: &str = "ckp.tool.described";
/// A chain ends in order.
pub const SESSION_ENDED: &str = "session.ended";
/// The lifecycle moved (CKP §8).
pub const LIFECYCLE: &str = "ckp.lifecycle.transition";
/// An inbound message was taken.
pub const MESSAGE_ACCEPTED: &str = "ckp.message.accepted";
/// A picture of the message that is taken next; its content is the picture.
pub const MESSAGE_ATTACHED: &str = "ckp.message.attached";
/// What a model reads before the words of the message that is taken next; its content is that text.
pub const MESSAGE_FRAMED: &str = "ckp.message.framed";
/// The client's own tools that came with a message; they are the content.
pub const MESSAGE_TOOLS: &str = "ckp.message.tools";
/// A call of a client's own tool was handed to the client, which runs it; it is the content.
pub const CLIENT_CALLED: &str = "ckp.client.called";
/// An inbound message was not taken.
pub const MESSAGE_REFUSED: &str = "ckp.message.refused";
/// A model looked for sentences of an answer that the record does not support; with the end of the turn, in one commit.
pub const CLAIMS_JUDGED: &str = "ckp.claims.judged";
/// A message's turn ended with an answer.
pub const MESSAGE_ANSWERED: &str = "ckp.message.answered";
/// An interrupted turn goes on after a restart.
pub const MESSAGE_RESUMED: &str = "ckp.message.resumed";
/// A person began anew: what was said in the session before leaves its context, and is still on the record.
pub const CONVERSATION_CLEARED: &str = "ckp.conversation.cleared";
/// A person chose which model answers the conversation's next messages, and how much it thinks.
pub const CONVERSATION_MODEL: &str = "ckp.conversation.model";
/// A message's turn can't be finished; it lies in the dead-letter box.
pub const MESSAGE_DEAD: &str = "ckp.message.dead";
/// An answer is about to be sent to its conversation: durable before it is.
pub const DELIVERY_STARTED: &str = "ckp.delivery.started";
/// An attempt to deliver an answer ended; the payload has the outcome.
pub const DELIVERY_ENDED: &str = "ckp.delivery.ended";
/// An answer that could not be delivered is tried again.
pub const DELIVERY_REQUEUED: &str = "ckp.delivery.requeued";
/// A request to a model starts. The payload has the reserved amounts. The event is durable before the request leaves.
pub const PROVIDER_REQUESTED: &str = "ckp.provider.requested";
/// A model answered.
pub const PROVIDER_COMPLETED: &str = "ckp.provider.completed";
/// An attempt at a model failed.
pub const PROVIDER_FAILED: &str = "ckp.provider.failed";
/// Requests to a provider's endpoint and model are written in another form, or smaller, than usual.
pub const PROVIDER_ADAPTED: &str = "ckp.provider.adapted";
/// A provider could not be reached after the start, without asking it anything.
pub const PROVIDER_UNREACHABLE: &str = "ckp.provider.unreachable";
/// Somebody wants a tool to run.
pub const ACTION_REQUESTED: &str = "action.requested";
/// It may: the decision, durable before the effect.
pub const ACTION_APPROVED: &str = "action.approved";
/// It may not.
pub const ACTION_DENIED: &str = "action.denied";
/// It ran.
pub const ACTION_EXECUTED: &str = "action.executed";
/// It did not run, was cut short, or its outcome is unknown.
pub const ACTION_FAILED: &str = "action.failed";
/// A CARP request came in.
pub const CARP_REQUEST: &str = "carp.request.received";
/// It was resolved.
pub const CARP_COMPLETED: &str = "carp.resolution.completed";
/// A CARP request came in and was not answered as asked.
pub const ERROR_OCCURRED: &str = "error.occurred";
/// An Atlas judged one action.
pub const POLICY_EVALUATED: &str = "policy.evaluated";
/// An execution ran against a policy.
pub const POLICY_VIOLATED: &str = "policy.violated";
/// A context block reached its reader.
pub const CONTEXT_INJECTED: &str = "context.injected";
/// A context block was left out.
pub const CONTEXT_REDACTED: &str = "context.redacted";
/// The owner of a CRA session. This type and the next five are in the runtime's own chain.
pub const CARP_SESSION: &str = "ckp.carp.session";
/// A resolution that may be executed under.
pub const CARP_ISSUED: &str = "ckp.carp.issued";
/// An execution used up part of the limits of Atlases.
pub const CARP_CHARGED: &str = "ckp.carp.charged";
/// A person's answer to an action that waited.
pub const CARP_ANSWERED: &str = "ckp.carp.answered";
/// An Atlas of the configuration is in force in this run; its content is what it was read from.
pub const ATLAS_DESCRIBED: &str = "ckp.atlas.described";
/// An Atlas came over the API.
pub const ATLAS_LOADED: &str = "ckp.atlas.loaded";
/// An Atlas was removed over the API.
pub const ATLAS_REMOVED: &str = "ckp.atlas.removed";
/// A person is asked.
pub const APPROVAL_REQUESTED: &str = "ckp.approval.requested";
/// The question was answered, or lapsed.
pub const APPROVAL_ANSWERED: &str = "ckp.approval.answered";
/// A fact that an approval was bound to changed before the run, so the approval is void.
pub const APPROVAL_VOIDED: &str = "ckp.approval.voided";
/// An operator stopped the agent, or a session.
pub const STOP_ENGAGED: &str = "ckp.stop.engaged";
/// An operator lifted a stop.
pub const STOP_LIFTED: &str = "ckp.stop.lifted";
/// A person's standing grant: later calls of that shape need no question.
pub const APPROVAL_GRANTED: &str = "ckp.approval.granted";
/// A standing grant ended.
pub const APPROVAL_REVOKED: &str = "ckp.approval.revoked";
/// An `audit-only` rule let a call pass.
pub const AUDIT: &str = "ckp.policy.audited";
/// A limit passed its warning mark.
pub const BUDGET_WARNED: &str = "ckp.budget.warned";
/// A dry run has ended: what its models took, counted against the agent's budgets.
pub const DRY_RUN_SPENT: &str = "ckp.budget.dry_run";
/// The loop guard ended a turn.
pub const TURN_STOPPED: &str = "ckp.turn.stopped";
/// The outcome of an effect that was unknown was found out.
pub const EFFECT_RESOLVED: &str = "ckp.effect.resolved";
/// A skill's instruction joined a turn.
pub const SKILL_INVOKED: &str = "ckp.skill.invoked";
/// A skill's result did not fit its `output_schema`; the model is asked once more.
pub const SKILL_REPAIRED: &str = "ckp.skill.repaired";
/// A skill ended: what it took beside what it was said to take.
pub const SKILL_FINISHED: &str = "ckp.skill.finished";
/// What a skill's world model foretold, and what of it is followed; its content is everything that was weighed.
pub const WORLD_MODEL_PLANNED: &str = "ckp.world_model.planned";
/// What came of a plan, beside what was foretold.
pub const WORLD_MODEL_COMPARED: &str = "ckp.world_model.compared";
/// A person puts back what calls of the session overwrote: durable before it is begun. Its content is the list.
pub const UNDO_STARTED: &str = "ckp.undo.started";
/// It is done.
pub const UNDO_ENDED: &str = "ckp.undo.ended";
/// Old messages left the model's view.
pub const CONTEXT_TRIMMED: &str = "ckp.context.trimmed";
/// The oldest turns of a conversation left its context. The content is their summary and the list of the replaced messages.
pub const CONTEXT_COMPACTED: &str = "ckp.context.compacted";
/// A context got text of files that holds untrusted text of others.
pub const CONTEXT_TAINTED: &str = "ckp.context.tainted";
/// Entries are to be kept: durable before they are.
pub const MEMORY_REQUESTED: &str = "ckp.memory.requested";
/// Entries were kept.
pub const MEMORY_STORED: &str = "ckp.memory.stored";
/// The agent wrote one of its context files.
pub const CONTEXT_WRITTEN: &str = "ckp.context.written";
/// A context file is not what the session's record says of it. The content is its text; a file that is gone has none.
pub const CONTEXT_READ: &str = "ckp.context.read";
/// A store was asked.
pub const MEMORY_QUERIED: &str = "ckp.memory.queried";
/// Entries were recalled before a turn. The content is the text that joined the prompt.
pub const MEMORY_RECALLED: &str = "ckp.memory.recalled";
/// A store was compacted.
pub const MEMORY_COMPACTED: &str = "ckp.memory.compacted";
/// Retention removed entries for good.
pub const MEMORY_EXPIRED: &str = "ckp.memory.expired";
/// A task was given to the whole swarm; its content, as that of the swarm's other events, is the fact that a start folds.
pub const SWARM_RUN: &str = "ckp.swarm.run";
/// A try of a member at a task began or ended.
pub const SWARM_TRY: &str = "ckp.swarm.try";
/// A report was not taken.
pub const SWARM_REFUSED: &str = "ckp.swarm.refused";
/// A seat's circuit breaker changed.
pub const SWARM_CIRCUIT: &str = "ckp.swarm.circuit";
/// A task went to the dead-letter box.
pub const SWARM_DEAD_LETTERED: &str = "ckp.swarm.dead_lettered";
/// Answers became one.
pub const SWARM_AGGREGATED: &str = "ckp.swarm.aggregated";
/// A run ended.
pub const SWARM_ENDED: &str = "ckp.swarm.ended";
/// A host coordinates the swarm from now on, where several share the agent.
pub const SWARM_LED: &str = "ckp.swarm.led";
/// A task was given to a peer.
pub const SWARM_DELEGATED: &str = "ckp.swarm.delegated";
/// A task's end was reported.
pub const SWARM_REPORTED: &str = "ckp.swarm.reported";
/// A message went to all peers.
pub const SWARM_BROADCAST: &str = "ckp.swarm.broadcast";
/// Secrets were found in a text.
pub const SCREEN_SECRET: &str = "ckp.screen.secret";
/// A text that addresses the model over its operator's head.
pub const SCREEN_INJECTION: &str = "ckp.screen.injection";
/// A text that is not valid input.
pub const SCREEN_INPUT: &str = "ckp.screen.input";
/// A model judged a text.
pub const SCREEN_JUDGED: &str = "ckp.screen.judged";
/// A channel let somebody or something not in.
pub const CHANNEL_REFUSED: &str = "ckp.channel.refused";
/// A code was given out, approved, denied or lapsed; somebody's pairing was revoked.
pub const CHANNEL_PAIRING: &str = "ckp.channel.pairing";
/// A push notification of a task was given up; its receiver never took it.
pub const PUSH_GIVEN_UP: &str = "ckp.push.given_up";
/// A trigger began a run, or did not.
pub const CHANNEL_RUN: &str = "ckp.channel.run";
