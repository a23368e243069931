//! A hundred kills: every message is answered and delivered once, or the repeat is marked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{answered, empty, inbound, parrot};
use crate::Kernel;
use crate::ports::Delivery;
use crate::testing::ScriptedChannel;

/// What a platform saw of one message's answers: whether each was marked.
type Seen = Arc<Mutex<BTreeMap<String, Vec<bool>>>>;

/// A random number, the same in every run.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// A platform that takes what comes from a process that lives.
fn platform(seen: &Seen, alive: &Arc<AtomicBool>) -> ScriptedChannel {
    let (seen, alive) = (Arc::clone(seen), Arc::clone(alive));
    ScriptedChannel::new(move |out, _| {
        if !alive.load(Ordering::SeqCst) {
            return Delivery::Unknown {
                reason: "dead".to_owned(),
            };
        }
        let mut seen = seen.lock().unwrap();
        seen.entry(out.text.clone()).or_default().push(out.repeat);
        ScriptedChannel::delivered()
    })
}

/// Sends the first `upto` messages that were not acknowledged.
async fn hand_in(kernel: Kernel, upto: u64, acked: Arc<Mutex<Vec<u64>>>, alive: Arc<AtomicBool>) {
    const CONVERSATIONS: u64 = 20;
    for n in 0..upto {
        if acked.lock().unwrap().contains(&n) {
            continue;
        }
        let room = format!("room {}", n % CONVERSATIONS);
        let taken = kernel
            .submit_message(inbound(&room, &format!("p{n}"), &format!("m{n}")))
            .await;
        if taken.is_ok() && alive.load(Ordering::SeqCst) {
            acked.lock().unwrap().push(n);
        }
    }
}

/// Processes that die at random moments, and a platform that sends again whatever was not acknowledged.
#[tokio::test(start_paused = true)]
async fn over_a_hundred_kills_every_message_is_answered_and_delivered_once_or_marked() {
    const MESSAGES: u64 = 200;
    const KILLS: u64 = 100;
    let mut rig = parrot();
    let seen: Seen = Arc::default();
    let acked: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut dice = 7;
    for round in 0..=KILLS {
        let last = round == KILLS;
        let alive = Arc::new(AtomicBool::new(true));
        let kernel = rig.start().await;
        let port = platform(&seen, &alive);
        let deliveries = kernel.deliver_channel("chat", Arc::new(port) as _);
        let upto = MESSAGES * (round + 1) / (KILLS + 1);
        let handing_in = tokio::spawn(hand_in(
            kernel.clone(),
            upto,
            Arc::clone(&acked),
            Arc::clone(&alive),
        ));
        if last {
            handing_in.await.unwrap();
            answered(&rig, usize::try_from(MESSAGES).unwrap()).await;
            empty(&rig).await;
        } else {
            for _ in 0..random(&mut dice, 120) {
                tokio::task::yield_now().await;
            }
            // The process is gone: nothing of it counts any more.
            alive.store(false, Ordering::SeqCst);
            handing_in.abort();
            let events = rig.journal.events().len();
            rig.journal = Arc::new(rig.journal.cut(events));
            drop((deliveries, kernel));
        }
    }
    let inbox = rig.journal.inbox();
    assert_eq!(
        inbox.len(),
        usize::try_from(MESSAGES).unwrap(),
        "each is one turn"
    );
    assert!(inbox.iter().all(|(_, end)| end.is_some()));
    let dead = inbox.iter().filter(|(_, end)| *end == Some("dead")).count();
    let seen = seen.lock().unwrap();
    let mut marked = 0;
    for n in 0..MESSAGES {
        let answers = seen.get(&format!("re: m{n}")).cloned().unwrap_or_default();
        let unmarked = answers.iter().filter(|repeat| !**repeat).count();
        assert!(unmarked <= 1, "m{n}: {answers:?}");
        marked += answers.len() - unmarked;
    }
    let told: usize = seen.len();
    assert_eq!(
        told,
        usize::try_from(MESSAGES).unwrap(),
        "each had its answer; {dead} were given up, {marked} marked"
    );
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}
