//! Doors with others on the far side: push notifications, another agent as a tool, an authorization server on both sides.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::agent::{Agent, PATIENCE, allow, manifest, of, program, scripted};
use crate::clients::{Served, TOKEN, agent_with, client, succeeded};
use crate::parts::{ours, part};
use crate::process::Group;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

/// A server of `tests/parts/clients` that prints its address; ends with the test.
struct Far {
    _process: Group,
    url: String,
}

impl Far {
    fn start(agent: &Agent, script: &str, args: &[&str]) -> Self {
        let mut command = agent.command(&part("clients/bin/python"));
        command.arg(ours("clients").join(script)).args(args);
        let mut process = Group::spawn(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        );
        let mut url = String::new();
        let stdout = process.0.stdout.take().expect("piped");
        BufReader::new(stdout)
            .read_line(&mut url)
            .expect("it says where it listens");
        let url = url.trim().to_owned();
        assert!(url.starts_with("http://"), "{script}: {url}");
        Self {
            _process: process,
            url,
        }
    }

    fn get(&self, path: &str) -> String {
        let (_, body) = ask(self.url.trim_start_matches("http://"), path, "");
        body
    }

    fn told(&self) -> Value {
        serde_json::from_str(&self.get("/told")).expect("JSON")
    }
}

/// GET by hand: the head and the body.
fn ask(address: &str, path: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_a2a_package_is_pushed_the_states_of_its_tasks_and_nowhere_else() {
    let port = free_port();
    let place = format!("'127.0.0.1:{port}'");
    let more = format!("[egress]\nallow_private = [{place}]");
    let agent = agent_with("'a2a'", &format!("push_hosts = [{place}]"), &more);
    let served = Served::start(&agent);
    succeeded(client(
        &agent,
        "a2a_push.py",
        &[&served.url(""), TOKEN, &port.to_string()],
    ));
    served.end();
    // What a receiver is known by is nowhere in the record.
    let events = format!("{:?}", agent.events());
    assert!(!events.contains("credential-canary") && !events.contains("receiver-token"));
}

#[test]
fn the_a2a_package_gives_the_agent_tasks_by_version_0_3() {
    let port = free_port();
    let place = format!("'127.0.0.1:{port}'");
    let more = format!("[egress]\nallow_private = [{place}]");
    let agent = agent_with("'a2a'", &format!("push_hosts = [{place}]"), &more);
    let served = Served::start(&agent);
    succeeded(client(
        &agent,
        "a2a_old_client.py",
        &[&served.url(""), TOKEN, &port.to_string()],
    ));
    served.end();
}

const PEER_SCRIPT: &str = r#"
scenes:
  - user: "hello$"
    steps:
      - call: [{ name: peer, arguments: { message: hello, context: desk } }]
      - say: "It says: {{last_tool_text}}"
  - user: "fail$"
    steps:
      - call: [{ name: peer, arguments: { message: fail } }]
      - any: [{ when: { error: true }, say: "Failed: {{last_tool_text}}" }, { say: "odd" }]
  - user: "which$"
    steps:
      - call: [{ name: peer, arguments: { message: which } }]
      - any: [{ when: { error: true }, say: "Asked: {{last_tool_text}}" }, { say: "odd" }]
  - user: "sleep$"
    steps:
      - call: [{ name: peer, arguments: { message: sleep } }]
      - any: [{ when: { error: true }, say: "Gave up." }, { say: "odd" }]
"#;

/// An agent with one tool of this name.
fn with_tool(tool: &Value, script: &str, local: &str) -> Agent {
    let agent = Agent::new();
    let name = tool["inline"]["name"].as_str().expect("a name");
    agent.write("script.yaml", script);
    agent.is(
        &manifest(&scripted(), &json!([tool]), &json!([allow(name)])),
        local,
    );
    agent
}

#[test]
fn another_agent_is_a_tool_by_the_a2a_package() {
    let tool = json!({ "inline": { "name": "peer", "description": "Asks the peer", "timeout_ms": 5000, "input_schema": {
        "type": "object", "properties": { "message": { "type": "string" }, "context": { "type": "string" } }, "required": ["message"] } } });
    let agent = with_tool(&tool, PEER_SCRIPT, "");
    let far = Far::start(&agent, "a2a_server.py", &[]);
    agent.write("secrets.toml", "PEER_TOKEN = 'peer-token'\n");
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(agent.path("secrets.toml"), readable).expect("ours");
    let bound = |url: &str| {
        let local = format!(
            "[secrets_store]\nfile = 'secrets.toml'\n[tools.peer.a2a]\nurl = '{url}'\nsecret_headers = {{ Authorization = 'PEER_TOKEN' }}\nsecret_prefix = 'Bearer '\n"
        );
        agent.write("clawk.toml", &local);
    };
    bound(&far.url);
    let say = |text: &str| agent.clawk(&["run", "claw.yaml", "-m", text]).ok().stdout;
    assert!(say("hello").contains("It says: the peer heard: hello"));
    let failed = say("fail");
    assert!(
        failed.contains("Failed: ") && failed.contains("it did not work"),
        "{failed}"
    );
    let asked = say("which");
    assert!(
        asked.contains("which one?") && asked.contains("input_required"),
        "{asked}"
    );
    // Nobody waits any more: the other agent is told.
    assert!(say("sleep").contains("Gave up."));
    let told = far.told();
    assert_eq!(told["cancelled"].as_array().map(Vec::len), Some(1), "{told}");
    let seen = told["seen"].as_array().expect("a list");
    assert_eq!(seen.len(), 4, "each message once: {told}");
    assert_eq!(seen[0][1], "desk", "the context goes along: {told}");
    // The message's id is the call's, so that both records can be held side by side.
    let events = agent.events();
    let calls: Vec<&Value> = of(&events, "action.requested");
    let ids: Vec<String> = calls
        .iter()
        .map(|event| event["request_id"].to_string())
        .collect();
    assert!(
        ids.is_empty() || seen.iter().all(|one| ids.contains(&one[0].to_string())),
        "{ids:?} {told}"
    );
    assert!(!format!("{events:?}").contains("peer-token"));

    // An interface at another origin would be given the token: it is not asked.
    let elsewhere = Far::start(&agent, "a2a_server.py", &[&format!("{}/rpc", far.url)]);
    bound(&elsewhere.url);
    let refused = say("fail");
    assert!(refused.contains("another origin"), "{refused}");
    assert_eq!(far.told()["seen"].as_array().map(Vec::len), Some(4));

    // One that speaks A2A 0.3 alone, and whose preferred transport is not spoken here.
    let old = Far::start(&agent, "a2a_server.py", &["0.3"]);
    bound(&old.url);
    assert!(say("hello").contains("It says: the peer heard: hello"));
    let asked = say("which");
    assert!(
        asked.contains("which one?") && asked.contains("input_required"),
        "{asked}"
    );
    assert!(say("sleep").contains("Gave up."));
    let told = old.told();
    assert_eq!(told["cancelled"].as_array().map(Vec::len), Some(1), "{told}");
    let methods = told["methods"].as_array().expect("a list");
    let spoken = |name: &str| methods.iter().any(|method| method == name);
    assert!(
        spoken("message/send") && spoken("tasks/get") && spoken("tasks/cancel"),
        "{told}"
    );
}

/// A Swarm of one member that is elsewhere, and what it answered.
fn member(agent: &Agent, task: &str, more: &[&str]) -> Value {
    let mut words = vec!["swarm", "run", "claw.yaml", task, "--format", "json"];
    words.extend(more);
    let output = agent.clawk(&words);
    serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{} {}", output.stdout, output.stderr))
}

#[test]
fn another_agent_is_a_member_of_a_swarm_by_the_a2a_package() {
    let agent = Agent::new();
    agent.write(
        "script.yaml",
        "scenes: [{ steps: [{ say: \"nobody here should speak\" }] }]\n",
    );
    let far = Far::start(&agent, "a2a_server.py", &[]);
    let mut team = manifest(&scripted(), &json!([]), &json!([allow("echo")]));
    team["spec"]["swarm"] = json!({"inline": {"name": "team", "topology": "broadcast",
        "agents": [{"identity_ref": "far", "role": "worker"}],
        "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
        "aggregation": {"strategy": "merge"}, "failure": {"retry_per_agent": 0}}});
    let bound = |more: &str| {
        format!(
            "[secrets_store]\nfile = 'secrets.toml'\n[peers.far]\na2a = '{}'\ntoken = 'PEER_TOKEN'\n{more}\n",
            far.url
        )
    };
    agent.is(&team, &bound(""));
    agent.write("secrets.toml", "PEER_TOKEN = 'peer-token'\n");
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(agent.path("secrets.toml"), readable).expect("ours");
    let result = member(&agent, "hello", &[]);
    assert_eq!(result["text"], "the peer heard: hello", "{result}");
    for (task, reason) in [("fail", "failed"), ("which", "input_required")] {
        let result = member(&agent, task, &[]);
        assert_eq!(result["answers"][0]["status"], "failed", "{result}");
        assert_eq!(result["answers"][0]["error"]["reason"], reason, "{result}");
    }
    // It ends with the time of the try, and the other agent is told.
    agent.write("clawk.toml", &bound("timeout_ms = 2500"));
    let result = member(&agent, "sleep", &[]);
    assert_eq!(result["answers"][0]["error"]["reason"], "try_timeout", "{result}");
    assert_eq!(far.told()["cancelled"].as_array().map(Vec::len), Some(1));
    // Killed while it waits: the task is followed after the start, and not given again.
    agent.write("clawk.toml", &bound(""));
    let task = ["--task", "00000000-0000-4000-8000-000000000007"];
    let before = far.told()["seen"].as_array().map_or(0, Vec::len);
    let mut command = agent.command(program());
    command.args(["swarm", "run", "claw.yaml", "slow"]).args(task);
    let waiting = Group::spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    let start = std::time::Instant::now();
    while far.told()["seen"].as_array().map_or(0, Vec::len) == before {
        assert!(start.elapsed() < PATIENCE, "the task was never given");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(waiting);
    let result = member(&agent, "slow", &task);
    assert_eq!(result["text"], "the peer heard: slow", "{result}");
    let seen = far.told()["seen"].as_array().map_or(0, Vec::len);
    assert_eq!(seen, before + 1, "given once: {}", far.told());
    // Rights that a message can't carry.
    agent.write("clawk.toml", &bound("tools = ['echo']"));
    let refused = agent.clawk(&["swarm", "run", "claw.yaml", "hello"]);
    assert!(
        refused.stderr.contains("can't be told to an agent of A2A"),
        "{}",
        refused.stderr
    );
    assert!(!format!("{:?}", agent.events()).contains("peer-token"));
}

/// The agent of `peer.py` over HTTP, and its port.
fn listening(agent: &Agent, peer: &str, notes: &std::path::Path) -> (Group, String) {
    let mut command = agent.command(std::path::Path::new("python3"));
    command.arg(peer).arg("honest").arg(notes).arg("http");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(agent.path("web.log")).expect("ours"));
    let web = Group::spawn(&mut command);
    let start = std::time::Instant::now();
    let port = loop {
        let said = std::fs::read_to_string(agent.path("web.log")).unwrap_or_default();
        if let Some((port, _)) = said.trim_start_matches("listens on ").split_once('\n') {
            break port.to_owned();
        }
        assert!(start.elapsed() < PATIENCE, "the agent does not listen: {said}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    (web, port)
}

/// One swarm of four makes: a member in this process, an agent in Python that was written from the text of CKP, on standard streams
/// and over HTTP, and one by the official package of A2A. The head is given work by none of them, and reads what all four said.
#[test]
fn a_swarm_of_members_of_four_makes_gives_one_answer() {
    let agent = Agent::new();
    let script = json!({"scenes": [
        {"system": "member own,", "steps": [{"say": "the own one did: do it"}]},
        {"user": "have answered this task", "steps": [{"say": "decided: {{last_user_text}}"}]},
    ]});
    agent.write("script.yaml", &script.to_string());
    let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/peer.py");
    let notes = agent.path("");
    let (web, port) = listening(&agent, peer, &notes);
    let far = Far::start(&agent, "a2a_server.py", &[]);
    let members = ["own", "py", "web", "far"];
    let agents: Vec<Value> = members
        .iter()
        .map(|name| json!({"identity_ref": name, "role": "worker"}))
        .collect();
    let mut team = manifest(&scripted(), &json!([]), &json!([allow("echo")]));
    for (strategy, number) in [("merge", "1"), ("leader-decides", "2")] {
        team["spec"]["swarm"] = json!({"inline": {"name": "team", "topology": "broadcast", "agents": agents,
            "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
            "aggregation": {"strategy": strategy}, "failure": {"retry_per_agent": 0}}});
        let toml = format!(
            "[secrets_store]\nfile = 'secrets.toml'\n[peers.py]\ncommand = ['python3', '{peer}', 'honest', '{}']\n\
             [peers.web]\nurl = 'http://127.0.0.1:{port}/claw'\n[peers.far]\na2a = '{}'\ntoken = 'PEER_TOKEN'\n",
            notes.display(),
            far.url
        );
        agent.is(&team, &toml);
        agent.write("secrets.toml", "PEER_TOKEN = 'peer-token'\n");
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(agent.path("secrets.toml"), readable).expect("ours");
        let task = format!("00000000-0000-4000-8000-00000000001{number}");
        let result = member(&agent, "do it", &["--task", &task]);
        assert_eq!(result["status"], "completed", "{result}");
        let said: Vec<(&str, &str)> = result["answers"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|answer| {
                (
                    answer["member"].as_str().expect("a name"),
                    answer["text"].as_str().expect("a text"),
                )
            })
            .collect();
        let expected = [
            ("own", "the own one did: do it"),
            ("py", "py did: do it"),
            ("web", "py did: do it"),
            ("far", "the peer heard: do it"),
        ];
        assert_eq!(said, expected, "{strategy}");
        let text = result["text"].as_str().expect("a text");
        assert!(
            expected.iter().all(|(_, said)| text.contains(said)),
            "{strategy}: {text}"
        );
    }
    drop(web);
    // Each worked once on each run, by its own record.
    let delegated = std::fs::read_to_string(agent.path("delegated")).expect("notes");
    assert_eq!(delegated.lines().count(), 4, "two agents, two runs: {delegated}");
    assert_eq!(far.told()["seen"].as_array().map(Vec::len), Some(2));
}

#[test]
fn tokens_of_an_authorization_server_open_the_doors_and_forged_ones_do_not() {
    let port = free_port();
    let resource = format!("http://127.0.0.1:{port}");
    let far = Far::start(&Agent::new(), "oauth_server.py", &[&format!("{resource}/mcp")]);
    let http = format!(
        "[http.oauth]\nissuer = '{}'\nresource = '{resource}'\nscopes = {{ 'mcp:use' = ['message', 'tool', 'read'] }}",
        far.url
    );
    let agent = agent_with("'mcp', 'claw', 'cra', 'openai'", &http, "");
    let served = Served::start_at(&agent, port);
    let status = |make: &str| {
        let token = far.get(&format!("/make?{make}"));
        let (head, _) = ask(
            &served.address,
            "/openai/v1/models",
            &format!("authorization: Bearer {token}\r\n"),
        );
        head.split(' ').nth(1).expect("a status").to_owned()
    };
    assert_eq!(status(""), "200");
    for forged in [
        "key=other",
        "alg=none",
        "life=-120",
        "aud=https://other.example",
        "iss=https://other.example",
    ] {
        assert_eq!(status(forged), "401", "{forged}");
    }
    assert_eq!(
        status("scope=other"),
        "403",
        "a scope that the table does not know allows nothing"
    );
    let (head, _) = ask(&served.address, "/mcp", "");
    assert!(
        head.contains(&format!(
            "resource_metadata=\"{resource}/.well-known/oauth-protected-resource/mcp\""
        )),
        "{head}"
    );
    // The MCP package finds its way from there by itself: metadata, registration, PKCE, and the agent's tool.
    succeeded(client(&agent, "mcp_oauth.py", &[&served.url("/mcp")]));
    // Who it was stands in the record.
    let token = far.get("/make");
    let body = json!({"model": "real", "messages": [{"role": "user", "content": "hello"}]}).to_string();
    let mut curl = agent.command("curl".as_ref());
    curl.args([
        "-sS",
        "--max-time",
        "30",
        "-H",
        "content-type: application/json",
        "-H",
    ]);
    curl.arg(format!("authorization: Bearer {token}"));
    let said = curl
        .args(["-d", &body, &served.url("/openai/v1/chat/completions")])
        .output();
    let said = String::from_utf8_lossy(&said.expect("curl runs").stdout).into_owned();
    assert!(said.contains("You said: hello"), "{said}");
    served.end();
    let events = agent.events();
    let accepted = of(&events, "ckp.message.accepted");
    assert!(
        accepted.iter().any(|event| event["sender"] == "openai:oauth:ann"),
        "{accepted:?}"
    );
}

const GUARDED_SCRIPT: &str = r#"
scenes:
  - user: "who$"
    steps:
      - call: [{ name: whoami, arguments: {} }]
      - say: "{{last_tool_text}}"
"#;

#[test]
fn clawk_logs_in_to_an_mcp_server_by_browser_and_by_device_and_renews_its_token() {
    let far = Far::start(&Agent::new(), "oauth_server.py", &[]);
    let tool = json!({ "inline": { "name": "whoami", "mcp_source": { "uri": format!("{}/mcp", far.url) },
        "sandbox_ref": "out" } });
    let agent = Agent::new();
    agent.write("script.yaml", GUARDED_SCRIPT);
    let mut whole = manifest(&scripted(), &json!([tool]), &json!([allow("whoami")]));
    let host = far.url.trim_start_matches("http://").to_owned();
    whole["spec"]["sandbox"] = json!({ "inline": { "name": "out", "level": "process", "capabilities": {
        "network": { "mode": "allowlist", "allowed_hosts": [host] } } } });
    agent.is(&whole, &format!("[egress]\nallow_private = ['{host}']\n"));
    let list = || agent.clawk(&["mcp", "list", "claw.yaml"]).ok().stdout;
    assert!(list().starts_with("no token"), "{}", list());
    let without = agent.clawk(&["run", "claw.yaml", "-m", "who"]);
    let words = format!("{}{}", without.stdout, without.stderr);
    assert!(words.contains("clawk mcp login"), "{words}");

    // The browser: whatever opens the address comes back to the port that clawk listens on.
    login(&agent, &[]);
    assert!(list().starts_with("token"), "{}", list());
    let say = || agent.clawk(&["run", "claw.yaml", "-m", "who"]).ok().stdout;
    assert!(say().contains("you are known, call 1"));
    let told = far.told();
    assert_eq!(told["registered"][0]["token_endpoint_auth_method"], "none");
    assert_eq!(
        told["authorized"][0]["scope"], "mcp:use",
        "what the server's metadata says"
    );
    // It holds 32 s and is renewed 30 s before its end.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(say().contains("you are known, call 2"));
    let told = far.told();
    let kinds: Vec<&str> = told["tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["grant_type"].as_str())
        .collect();
    assert!(
        kinds.starts_with(&["authorization_code", "refresh_token"]),
        "{kinds:?}"
    );
    let sealed = std::fs::read_dir(agent.state().join("oauth"))
        .expect("made")
        .count();
    assert_eq!(sealed, 1);

    let forgotten = agent.clawk(&["mcp", "logout", "claw.yaml", "whoami"]).ok();
    assert!(forgotten.stdout.contains("forgotten"), "{forgotten:?}");
    assert!(list().starts_with("no token"));
    // A code on another device.
    let device = agent.clawk(&["mcp", "login", "claw.yaml", "--device"]).ok();
    assert!(
        device.stderr.contains("ABCD-EFGH") && device.stdout.contains("there is a token"),
        "{device:?}"
    );
    assert!(say().contains("you are known, call 3"));
}

/// `clawk mcp login` with a browser that follows the address.
pub(crate) fn login(agent: &Agent, more: &[&str]) {
    let mut command = agent.command(program());
    command.args(["mcp", "login", "claw.yaml"]).args(more);
    let mut process = Group::spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped()),
    );
    let lines = BufReader::new(process.0.stderr.take().expect("piped")).lines();
    let address = lines
        .map_while(Result::ok)
        .find(|line| line.contains("code_challenge="))
        .expect("an address");
    let address = address.trim();
    let browser = agent
        .command("curl".as_ref())
        .args(["-sSL", "--max-time", "20", address])
        .output();
    let browser = browser.expect("curl runs");
    assert!(
        String::from_utf8_lossy(&browser.stdout).contains("close this page"),
        "{browser:?}"
    );
    assert!(process.wait(PATIENCE).success());
}
