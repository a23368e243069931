//! One real server speaks two protocols: both adapters, with and without a stream.

use serde_json::json;

use crate::agent::{Agent, allow, manifest, of};
use crate::model::Model;
use crate::turn::last_session;

#[test]
fn both_protocols_streamed_or_not_give_text_and_count_tokens() {
    let model = Model::start();
    for protocol in ["openai-compatible", "anthropic-native"] {
        for streaming in [true, false] {
            let agent = Agent::new();
            agent.is(
                &manifest(
                    &model.provider(protocol, streaming),
                    &json!([]),
                    &json!([allow("nothing")]),
                ),
                "",
            );
            let done = agent.clawk(&["run", "claw.yaml", "-m", "Say hello."]).ok();
            let case = format!("{protocol}, streaming {streaming}: {done:#?}");
            assert!(!done.stdout.trim().is_empty(), "{case}");
            let events = last_session(&agent);
            let [completed] = of(&events, "ckp.provider.completed")[..] else {
                panic!("one inference was wanted: {case}");
            };
            assert_eq!(completed["estimated"], false, "{case}");
            assert!(completed["input_tokens"].as_u64() > Some(0), "{case} {completed}");
            assert!(
                completed["output_tokens"].as_u64() > Some(0),
                "{case} {completed}"
            );
            assert!(of(&events, "ckp.provider.failed").is_empty(), "{case}");
        }
    }
}
