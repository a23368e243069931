//! The names of the event types, as they are spelled in the journal and in a trace.
//!
//! The order is the order of [`crate::Event`].

/// A chain of events begins. A chain of the CRA interface holds only the agent and the goal.
pub const SESSION_STARTED: &str = "session.started";
/// An agent starts. The content is the agent's configuration that a replay needs.
pub const AGENT_DESCRIBED: &str = "ckp.agent.described";
/// The agent read a tool's description for the first time in this run. The content is the description that rules see.
pub const TOOL_DESCRIBED: &str = "ckp.tool.described";
/// A chain of events ends normally.
pub const SESSION_ENDED: &str = "session.ended";
/// The agent's lifecycle state changed (CKP §8).
pub const LIFECYCLE: &str = "ckp.lifecycle.transition";
/// An inbound message was accepted.
pub const MESSAGE_ACCEPTED: &str = "ckp.message.accepted";
/// An image of the message that is accepted next. The content is the image.
pub const MESSAGE_ATTACHED: &str = "ckp.message.attached";
/// Text that the model reads before the next message. The content is that text.
pub const MESSAGE_FRAMED: &str = "ckp.message.framed";
/// The client's own tools that came with a message. The content is the tools.
pub const MESSAGE_TOOLS: &str = "ckp.message.tools";
/// A call of a client's own tool was handed to the client. The content is the call.
pub const CLIENT_CALLED: &str = "ckp.client.called";
/// An inbound message was rejected.
pub const MESSAGE_REFUSED: &str = "ckp.message.refused";
/// A message's turn ended.
pub const MESSAGE_ANSWERED: &str = "ckp.message.answered";
/// An interrupted turn continues after a restart.
pub const MESSAGE_RESUMED: &str = "ckp.message.resumed";
/// A message's turn can't be finished; it is in the dead-letter box.
pub const MESSAGE_DEAD: &str = "ckp.message.dead";
/// A model checked an answer for sentences that the record does not support.
pub const CLAIMS_JUDGED: &str = "ckp.claims.judged";
/// A person cleared the conversation. Earlier messages leave the context but stay in the record.
pub const CONVERSATION_CLEARED: &str = "ckp.conversation.cleared";
/// A person chose which model answers the conversation's next messages, and how much it thinks.
pub const CONVERSATION_MODEL: &str = "ckp.conversation.model";
/// The loop guard ended a turn.
pub const TURN_STOPPED: &str = "ckp.turn.stopped";
/// An answer is about to be sent to its conversation.
pub const DELIVERY_STARTED: &str = "ckp.delivery.started";
/// An attempt to deliver an answer ended.
pub const DELIVERY_ENDED: &str = "ckp.delivery.ended";
/// The delivery of an undelivered answer is tried again.
pub const DELIVERY_REQUEUED: &str = "ckp.delivery.requeued";
/// A request to a model starts. The amounts are the reserved amounts.
pub const PROVIDER_REQUESTED: &str = "ckp.provider.requested";
/// A model answered.
pub const PROVIDER_COMPLETED: &str = "ckp.provider.completed";
/// An attempt of a model request failed.
pub const PROVIDER_FAILED: &str = "ckp.provider.failed";
/// From now on, requests to an endpoint use another format, or are smaller.
pub const PROVIDER_ADAPTED: &str = "ckp.provider.adapted";
/// A provider could not be reached after the start.
pub const PROVIDER_UNREACHABLE: &str = "ckp.provider.unreachable";
/// A budget limit passed its warning threshold.
pub const BUDGET_WARNED: &str = "ckp.budget.warned";
/// A dry run ended. The cost of its models counts against the agent's budgets.
pub const DRY_RUN_SPENT: &str = "ckp.budget.dry_run";
/// A caller requests a tool call.
pub const ACTION_REQUESTED: &str = "action.requested";
/// The decision that a call may run. It is durable before the effect begins.
pub const ACTION_APPROVED: &str = "action.approved";
/// The call may not run.
pub const ACTION_DENIED: &str = "action.denied";
/// The call ran.
pub const ACTION_EXECUTED: &str = "action.executed";
/// The call did not run, was cut short, or its outcome is unknown.
pub const ACTION_FAILED: &str = "action.failed";
/// An `audit-only` rule let a call pass.
pub const AUDIT: &str = "ckp.policy.audited";
/// The unknown outcome of an effect was determined.
pub const EFFECT_RESOLVED: &str = "ckp.effect.resolved";
/// A network connection of a call was served.
pub const EGRESS_CONNECTED: &str = "ckp.egress.connected";
/// A network connection of a call was refused or closed.
pub const EGRESS_REFUSED: &str = "ckp.egress.refused";
/// Totals of a call's further network connections.
pub const EGRESS_SUMMED: &str = "ckp.egress.summed";
/// An approval was requested from a person.
pub const APPROVAL_REQUESTED: &str = "ckp.approval.requested";
/// An approval request was answered, or expired.
pub const APPROVAL_ANSWERED: &str = "ckp.approval.answered";
/// A precondition of an approval changed before the call ran.
pub const APPROVAL_VOIDED: &str = "ckp.approval.voided";
/// A person gave a standing grant: later calls that match it need no approval.
pub const APPROVAL_GRANTED: &str = "ckp.approval.granted";
/// A standing grant ended.
pub const APPROVAL_REVOKED: &str = "ckp.approval.revoked";
/// An operator stopped the agent, or a session.
pub const STOP_ENGAGED: &str = "ckp.stop.engaged";
/// An operator lifted a stop.
pub const STOP_LIFTED: &str = "ckp.stop.lifted";
/// A person starts to restore what calls of the session overwrote. The content is the list.
pub const UNDO_STARTED: &str = "ckp.undo.started";
/// An undo ended.
pub const UNDO_ENDED: &str = "ckp.undo.ended";
/// Old messages were removed from the model's context.
pub const CONTEXT_TRIMMED: &str = "ckp.context.trimmed";
/// A summary replaced the oldest turns in the context. The content is the summary and the list of replaced messages.
pub const CONTEXT_COMPACTED: &str = "ckp.context.compacted";
/// The agent wrote one of its context files.
pub const CONTEXT_WRITTEN: &str = "ckp.context.written";
/// A context file differs from the session's record of it. The content is the file's new text.
pub const CONTEXT_READ: &str = "ckp.context.read";
/// Text of files with untrusted content entered a context.
pub const CONTEXT_TAINTED: &str = "ckp.context.tainted";
/// Secrets were found in a text.
pub const SCREEN_SECRET: &str = "ckp.screen.secret";
/// A text contains a prompt injection.
pub const SCREEN_INJECTION: &str = "ckp.screen.injection";
/// A text is not valid input.
pub const SCREEN_INPUT: &str = "ckp.screen.input";
/// A model judged a text.
pub const SCREEN_JUDGED: &str = "ckp.screen.judged";
/// Contents of the session were erased.
pub const CONTENT_REDACTED: &str = "ckp.content.redacted";
/// Entries are about to be stored. The event is durable before the store is changed.
pub const MEMORY_REQUESTED: &str = "ckp.memory.requested";
/// Entries were stored.
pub const MEMORY_STORED: &str = "ckp.memory.stored";
/// A memory store was searched.
pub const MEMORY_QUERIED: &str = "ckp.memory.queried";
/// Entries were recalled before a turn. The content is the entries.
pub const MEMORY_RECALLED: &str = "ckp.memory.recalled";
/// Retention deleted entries permanently.
pub const MEMORY_EXPIRED: &str = "ckp.memory.expired";
/// A store was compacted.
pub const MEMORY_COMPACTED: &str = "ckp.memory.compacted";
/// A person or a program outside the agent deleted entries.
pub const MEMORY_FORGOTTEN: &str = "ckp.memory.forgotten";
/// Entries that compaction had set aside were restored.
pub const MEMORY_RESTORED: &str = "ckp.memory.restored";
/// A skill's instruction was added to a turn.
pub const SKILL_INVOKED: &str = "ckp.skill.invoked";
/// A skill's result did not match its `output_schema`. The model is asked once more.
pub const SKILL_REPAIRED: &str = "ckp.skill.repaired";
/// A skill ended: its actual use and its estimates.
pub const SKILL_FINISHED: &str = "ckp.skill.finished";
/// A skill's world model made predictions, and a plan was chosen. The content is all candidates.
pub const WORLD_MODEL_PLANNED: &str = "ckp.world_model.planned";
/// The actual result of a plan, compared with the prediction.
pub const WORLD_MODEL_COMPARED: &str = "ckp.world_model.compared";
/// A task was given to the whole swarm.
pub const SWARM_RUN: &str = "ckp.swarm.run";
/// A member's attempt at a task began or ended.
pub const SWARM_TRY: &str = "ckp.swarm.try";
/// A member's report was rejected.
pub const SWARM_REFUSED: &str = "ckp.swarm.refused";
/// A member's circuit breaker changed.
pub const SWARM_CIRCUIT: &str = "ckp.swarm.circuit";
/// A task went to the dead-letter box.
pub const SWARM_DEAD_LETTERED: &str = "ckp.swarm.dead_lettered";
/// The members' answers were combined into one.
pub const SWARM_AGGREGATED: &str = "ckp.swarm.aggregated";
/// A run ended.
pub const SWARM_ENDED: &str = "ckp.swarm.ended";
/// A host became the coordinator of the swarm.
pub const SWARM_LED: &str = "ckp.swarm.led";
/// A task was given to a peer. Only the first versions wrote `peer`, `seat` and `task_hash`.
pub const SWARM_DELEGATED: &str = "ckp.swarm.delegated";
/// A peer or a team reported the end of a task. A peer's report has `result_hash`, a team's has `fact_hash`.
pub const SWARM_REPORTED: &str = "ckp.swarm.reported";
/// A message went to all peers.
pub const SWARM_BROADCAST: &str = "ckp.swarm.broadcast";
/// A channel refused a sender or a message.
pub const CHANNEL_REFUSED: &str = "ckp.channel.refused";
/// A pairing code was issued, approved or denied, or a pairing was revoked.
pub const CHANNEL_PAIRING: &str = "ckp.channel.pairing";
/// A trigger started, skipped, queued or missed a run.
pub const CHANNEL_RUN: &str = "ckp.channel.run";
/// The delivery of a task's push notification was given up.
pub const PUSH_GIVEN_UP: &str = "ckp.push.given_up";
/// A CARP request arrived. Fields that are not set or have the default are left out.
pub const CARP_REQUEST: &str = "carp.request.received";
/// A CARP request was resolved.
pub const CARP_COMPLETED: &str = "carp.resolution.completed";
/// A CARP request failed.
pub const ERROR_OCCURRED: &str = "error.occurred";
/// An Atlas evaluated one action.
pub const POLICY_EVALUATED: &str = "policy.evaluated";
/// An execution violated a policy.
pub const POLICY_VIOLATED: &str = "policy.violated";
/// A context block was delivered to the reader.
pub const CONTEXT_INJECTED: &str = "context.injected";
/// A context block was left out.
pub const CONTEXT_REDACTED: &str = "context.redacted";
/// The owner of a CRA session. The content is the goal or, with `about_hash`, the whole opening request.
pub const CARP_SESSION: &str = "ckp.carp.session";
/// A resolution under which actions may be executed. The content is the data that execution needs.
pub const CARP_ISSUED: &str = "ckp.carp.issued";
/// An execution used up part of the limits of Atlases.
pub const CARP_CHARGED: &str = "ckp.carp.charged";
/// A person answered the approval request of a waiting action.
pub const CARP_ANSWERED: &str = "ckp.carp.answered";
/// An Atlas of the configuration is in force in this run. The content is the Atlas's source.
pub const ATLAS_DESCRIBED: &str = "ckp.atlas.described";
/// An Atlas was loaded over the API.
pub const ATLAS_LOADED: &str = "ckp.atlas.loaded";
/// An Atlas was removed over the API.
pub const ATLAS_REMOVED: &str = "ckp.atlas.removed";
