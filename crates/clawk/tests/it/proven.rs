//! Hosts that prove their keys over a bus, and somebody who can write to the bus and has none of the keys.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::peers::{Host, key_of, refused, reports, serving, silent_script, verified};
use crate::swarm::{Giving, agent, says, scene, swarm};

/// Puts a message into a queue of the file, if one is given, and prints what lies in all queues.
const BUS: &str = "import json,sqlite3,sys,time
c=sqlite3.connect(sys.argv[1],timeout=30)
for queue,own,message in [sys.argv[2:5]] if len(sys.argv)>2 else []:
    c.execute('INSERT INTO messages (queue,client,message,own_id,added_ms,visible_ms) VALUES (?,?,?,?,?,0)',
        (queue,'forger',message.encode(),own,int(time.time()*1000)))
    c.commit()
print(json.dumps([[q,m.decode(),r] for q,m,r in c.execute('SELECT queue,message,reason FROM messages ORDER BY id')]))";

const HAND: &str = "claw.team.hand";
const FOOT: &str = "claw.team.foot";

/// Queue, message, and why it is a dead letter.
type Lying = Vec<(String, String, Option<String>)>;

fn bus(leader: &Agent, put: &[&str]) -> Lying {
    let mut command = std::process::Command::new("python3");
    let output = command
        .args(["-c", BUS])
        .arg(leader.path("bus.db"))
        .args(put)
        .output();
    let output = output.unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The messages of a queue.
fn lying(leader: &Agent, queue: &str) -> Vec<Value> {
    let all = bus(leader, &[]).into_iter();
    all.filter(|(name, _, _)| name == queue)
        .map(|(_, message, _)| serde_json::from_str(&message).unwrap())
        .collect()
}

fn ended(run: Giving) {
    let output = run.output();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{result}");
    let said = result["text"].as_str().unwrap();
    assert_eq!(said.matches("signed").count(), 2, "{result}");
    assert!(!said.contains("forged"), "{result}");
}

/// A leader, and a worker for two members; each knows the other's key.
fn bound() -> (Agent, Agent, String) {
    let members =
        json!([{"identity_ref": "hand", "role": "worker"}, {"identity_ref": "foot", "role": "worker"}]);
    let own =
        json!({"coordination": {"message_passing": "queue", "backend": "sqlite-wal", "concurrency": {}}});
    let team = swarm("broadcast", "merge", members, own);
    let scenes = json!([
        scene("member hand", "", says("signed")),
        scene("member foot", "", says("signed"))
    ]);
    let worker = agent(&team, &json!({"scenes": scenes}));
    let leader = agent(&team, &silent_script());
    let ((workers, _), (leaders, print)) = (key_of(&worker), key_of(&leader));
    let url = format!("[swarm]\nurl = \"{}\"\n", leader.path("bus.db").display());
    let keys = format!("[peers.hand]\nkey = \"{workers}\"\n[peers.foot]\nkey = \"{workers}\"\n");

    // A host that would refuse its own reports does not start.
    std::fs::write(leader.path("clawk.toml"), format!("{url}{keys}")).unwrap();
    let output = leader
        .clawk(["swarm", "run", "claw.yaml", "do it"])
        .output()
        .unwrap();
    let told = text(&output.stderr);
    assert!(
        !output.status.success() && told.contains("out of `[swarm] serve`"),
        "{told}"
    );

    std::fs::write(leader.path("clawk.toml"), format!("{url}serve = []\n{keys}")).unwrap();
    let toml = format!("{url}[peers.tested]\nkey = \"{leaders}\"\n");
    std::fs::write(worker.path("clawk.toml"), toml).unwrap();
    (leader, worker, print)
}

/// The report of a task, as somebody writes it who has read the task on the bus.
fn forged(task: &Value, proof: Option<&Value>) -> String {
    let mut params = json!({
        "task_id": task["params"]["task_id"], "report_token": task["params"]["context"]["report_token"],
        "status": "completed", "result": {"text": "forged"},
    });
    if let Some(proof) = proof {
        params["proof"] = proof.clone();
    }
    json!({"jsonrpc": "2.0", "id": "report-x", "method": "claw.swarm.report", "params": params}).to_string()
}

#[test]
fn who_writes_to_the_bus_without_a_key_gives_no_task_and_reports_none() {
    let (leader, worker, print) = bound();
    let (inbox, outbox) = (format!("{HAND}.inbox"), format!("{HAND}.outbox"));
    let host = Host::start(&mut serving(&worker, &[]), "working for the swarm");
    ended(Giving::new(&leader));
    until("the bus is empty", || {
        let waits = [&inbox, &format!("{FOOT}.inbox")].map(|queue| lying(&leader, queue).len());
        (waits == [0, 0]).then_some(())
    });
    drop(host);
    let old = lying(&leader, &outbox).remove(0);
    assert!(old["params"]["proof"]["signature"].is_string(), "{old}");

    // Nobody works now: the tasks lie in the bus, and everybody who can read it knows their tokens.
    let run = Giving::new(&leader);
    let task = until("the task is in the bus", || {
        lying(&leader, &inbox).into_iter().next()
    });
    bus(&leader, &[&outbox, "no proof", &forged(&task, None)]);
    bus(
        &leader,
        &[
            &outbox,
            "old proof",
            &forged(&task, Some(&old["params"]["proof"])),
        ],
    );
    let mut moved = old;
    moved["params"]["task_id"] = task["params"]["task_id"].clone();
    moved["params"]["report_token"] = task["params"]["context"]["report_token"].clone();
    bus(&leader, &[&outbox, "old report", &moved.to_string()]);
    until("three reports are refused", || {
        (refused(&leader).len() == 3).then_some(())
    });
    assert_eq!(refused(&leader), ["unproven"; 3]);

    let mut unsigned = task.clone();
    unsigned["params"]["context"]["proof"].take();
    bus(&leader, &[&inbox, "unsigned task", &unsigned.to_string()]);
    let mut other = task.clone();
    other["params"]["task"]["description"] = json!("do more");
    bus(&leader, &[&inbox, "other task", &other.to_string()]);
    bus(
        &leader,
        &[&format!("{FOOT}.inbox"), "other queue", &task.to_string()],
    );
    let host = Host::start(&mut serving(&worker, &[]), "working for the swarm");
    ended(run);
    let mut dead = until("three dead letters", || {
        let dead: Vec<String> = bus(&leader, &[])
            .into_iter()
            .filter_map(|(_, _, why)| why)
            .collect();
        (dead.len() == 3).then_some(dead)
    });
    dead.sort();
    assert!(
        dead.iter()
            .all(|why| why.contains("given by `tested`") && why.contains(&print)),
        "{dead:?}"
    );
    assert_eq!(
        dead.iter().filter(|why| why.contains("is not signed")).count(),
        1,
        "{dead:?}"
    );
    assert_eq!(
        dead.iter().filter(|why| why.contains("were changed")).count(),
        2,
        "{dead:?}"
    );

    // The task itself, again: it was done, and is not done again.
    until("the bus is empty", || {
        lying(&leader, &inbox).is_empty().then_some(())
    });
    bus(&leader, &[&inbox, "the task again", &task.to_string()]);
    until("it is taken", || lying(&leader, &inbox).is_empty().then_some(()));
    drop(host);
    assert_eq!((reports(&leader), reports(&worker)), (4, 4));
    verified(&leader);
    verified(&worker);
}
