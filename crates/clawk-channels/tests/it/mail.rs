//! `email` and `imap` against dovecot and an SMTP server: threads, who wrote it, loops, files, a mailbox read on after a restart.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clawk_channels::Channels;
use clawk_kernel::Kernel;
use clawk_kernel::testing::{Behaviour, Rig};
use serde_json::{Value, json};

use crate::suite::{LONG, parrot, start, until};

/// A free port; free again when this returns.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Both servers, on one folder.
struct Servers {
    folder: tempfile::TempDir,
    imap: u16,
    smtp: u16,
    children: Vec<Child>,
    owner: u32,
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Dovecot's own processes end with their master, which must be told.
            let _told = Command::new("kill").arg(child.id().to_string()).status();
        }
        std::thread::sleep(Duration::from_millis(200));
        for child in &mut self.children {
            let _gone = child.kill();
            let _waited = child.wait();
        }
    }
}

impl Servers {
    fn new() -> Self {
        let parts =
            std::env::var("CLAWK_PARTS").expect("CLAWK_PARTS names the folder of tests/parts/install.sh");
        let python = Path::new(&parts).join("mail/bin/python");
        assert!(
            python.exists(),
            "run tests/parts/install.sh: {} is missing",
            python.display()
        );
        let folder = tempfile::Builder::new()
            .prefix("mail")
            .tempdir_in("/tmp")
            .unwrap();
        let root = folder.path();
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let uid = std::fs::metadata(root).unwrap().uid();
        // Dovecot lets no mailbox belong to root: the user `mail` of every Debian.
        let owner = if uid == 0 { 8 } else { uid };
        let name = |id: u32| {
            let out = Command::new("id")
                .args(["-nu", &id.to_string()])
                .output()
                .unwrap();
            String::from_utf8(out.stdout).unwrap().trim().to_owned()
        };
        for at in ["box/new", "box/cur", "box/tmp", "out/new", "out/cur", "out/tmp"] {
            std::fs::create_dir_all(root.join(at)).unwrap();
            if uid == 0 {
                chown(root.join(at), Some(owner), Some(owner)).unwrap();
                chown(root.join(at).parent().unwrap(), Some(owner), Some(owner)).unwrap();
            }
        }
        let (imap, smtp) = (port(), port());
        let at = root.display();
        let conf = format!(
            "base_dir = {at}/run\nstate_dir = {at}/state\nlog_path = {at}/log\nprotocols = imap\nlisten = 127.0.0.1\nssl = no\n\
             disable_plaintext_auth = no\ndefault_internal_user = {user}\ndefault_internal_group = {group}\ndefault_login_user = {user}\n\
             mail_location = maildir:{at}/box\nfirst_valid_uid = 1\nfirst_valid_gid = 0\n\
             service imap-login {{\n  chroot =\n  inet_listener imap {{\n    port = {imap}\n  }}\n  inet_listener imaps {{\n    port = 0\n  }}\n}}\n\
             service anvil {{\n  chroot =\n}}\n\
             passdb {{\n  driver = static\n  args = password=mail-secret\n}}\nuserdb {{\n  driver = static\n  args = uid={owner} gid={owner} home={at}\n}}\n",
            user = name(owner),
            group = name(owner),
        );
        std::fs::write(root.join("dovecot.conf"), conf).unwrap();
        let dovecot = Command::new("dovecot")
            .args(["-F", "-c"])
            .arg(root.join("dovecot.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("dovecot is missing: tests/parts/install.sh installs it");
        let taker = Command::new(python)
            .args(["-m", "aiosmtpd", "-n", "-l", &format!("127.0.0.1:{smtp}")])
            .args(["-c", "aiosmtpd.handlers.Mailbox"])
            .arg(root.join("out"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let servers = Self {
            folder,
            imap,
            smtp,
            children: vec![dovecot, taker],
            owner,
        };
        let began = Instant::now();
        for port in [imap, smtp] {
            while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
                let log = std::fs::read_to_string(servers.folder.path().join("log")).unwrap_or_default();
                assert!(began.elapsed() < LONG, "a mail server does not start: {log}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        servers
    }

    /// A mail comes.
    fn deliver(&self, name: &str, mail: &str) {
        let root = self.folder.path();
        let tmp = root.join("box/tmp").join(name);
        std::fs::write(&tmp, mail.replace('\n', "\r\n")).unwrap();
        if self.owner == 8 {
            chown(&tmp, Some(self.owner), Some(self.owner)).unwrap();
        }
        std::fs::rename(tmp, root.join("box/new").join(name)).unwrap();
    }

    /// Mail that was handed in, in its order.
    fn sent(&self) -> Vec<String> {
        let mut files: Vec<PathBuf> = ["new", "cur"]
            .iter()
            .flat_map(|at| std::fs::read_dir(self.folder.path().join("out").join(at)).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
        files
            .iter()
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect()
    }

    fn email(&self) -> Value {
        json!({"url": format!("imap://agent%40example.test@127.0.0.1:{}", self.imap),
            "smtp_url": format!("smtp://agent%40example.test@127.0.0.1:{}", self.smtp),
            "settings": {"address": "agent@example.test", "authserv_id": "mx.test"}})
    }
}

const PASSED: &str = "Authentication-Results: mx.test; dmarc=pass header.from=corp.test\n";

async fn on(rig: &Rig, name: &str, config: Value, folder: &Path) -> (Kernel, Channels) {
    let kernel = rig.start().await;
    let configs = BTreeMap::from([(name.to_owned(), serde_json::from_value(config).unwrap())]);
    let secrets = [("TOKEN", "mail-secret"), ("WRONG", "other")];
    let channels = start(rig, kernel.clone(), configs, &secrets, folder).await;
    (kernel, channels)
}

async fn state(channels: &Channels, word: &str) {
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == word }).await;
}

fn email(access: &Value) -> Value {
    json!([{"name": "post", "type": "email", "transport": "polling", "auth": {"secret_ref": "TOKEN"}, "access_control": access}])
}

fn reasons(rig: &Rig) -> Vec<String> {
    let trace = rig.journal.trace();
    let refused = trace
        .iter()
        .filter(|event| event.event_type == "ckp.channel.refused");
    refused
        .map(|event| event.payload["reason"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_mail_is_answered_in_its_thread_and_once() {
    let servers = Servers::new();
    servers.deliver(
        "old",
        &format!("{PASSED}From: ann@corp.test\nMessage-ID: <old@corp.test>\n\nBefore the first start\n"),
    );
    let rig = parrot(email(
        &json!({"mode": "allowlist", "allowed_ids": ["ann@corp.test"]}),
    ));
    let folder = tempfile::tempdir().unwrap();
    let (kernel, channels) = on(&rig, "post", servers.email(), folder.path()).await;
    state(&channels, "ready").await;
    servers.deliver("1", &format!("{PASSED}From: Ann <ann@corp.test>\nTo: agent@example.test\nSubject: Plans\nMessage-ID: <a@corp.test>\n\nsay **hello**\n"));
    until(|| async { servers.sent().len() == 1 }).await;
    let answer = servers.sent().remove(0);
    for line in [
        "In-Reply-To: <a@corp.test>",
        "References: <a@corp.test>",
        "Subject: Re: Plans",
        "Auto-Submitted: auto-replied",
        "X-Clawk-Loop: agent@example.test",
        "To: ann@corp.test",
        "X-RcptTo: ann@corp.test",
        "X-MailFrom: agent@example.test",
    ] {
        assert!(
            answer.lines().any(|found| found.trim_end() == line),
            "{line} is missing: {answer}"
        );
    }
    assert!(answer.contains("hello"), "{answer}");
    // The same mail again, as from another server: no second turn.
    servers.deliver(
        "2",
        &format!("{PASSED}From: ann@corp.test\nMessage-ID: <a@corp.test>\n\nsay again\n"),
    );
    // An answer joins the thread by its references.
    servers.deliver("3", &format!("{PASSED}From: ann@corp.test\nSubject: Re: Plans\nMessage-ID: <c@corp.test>\nReferences: <a@corp.test> <b@corp.test>\n\nsay more\n"));
    until(|| async { servers.sent().len() == 2 }).await;
    let answer = servers.sent().remove(1);
    assert!(answer.contains("In-Reply-To: <c@corp.test>"), "{answer}");
    assert!(answer.contains("Subject: Re: Plans"), "{answer}");
    let inbox = rig.journal.inbox();
    assert_eq!(inbox.len(), 2, "one turn for each mail: {inbox:?}");
    let sessions = kernel.list_open_sessions();
    assert_eq!(sessions.len(), 1, "one thread is one session: {sessions:?}");
    // Handed in and recorded as such: else it would be sent again under the same Message-ID.
    until(|| async { channels.channel_reports().await.unwrap()[0].queued == 0 }).await;
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    // The position outlives the process: nothing is answered again, and what came in between is.
    servers.deliver(
        "4",
        &format!("{PASSED}From: ann@corp.test\nSubject: New\nMessage-ID: <d@corp.test>\n\nsay later\n"),
    );
    let (_kernel, channels) = on(&rig, "post", servers.email(), folder.path()).await;
    until(|| async { servers.sent().len() == 3 }).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(servers.sent().len(), 3);
    assert_eq!(rig.journal.inbox().len(), 3);
    channels.close().await;
}

#[tokio::test]
async fn a_forged_sender_is_nobody_and_a_machine_gets_no_answer() {
    let servers = Servers::new();
    let rig = parrot(email(
        &json!({"mode": "allowlist", "allowed_ids": ["ann@corp.test"]}),
    ));
    let folder = tempfile::tempdir().unwrap();
    let (_kernel, channels) = on(&rig, "post", servers.email(), folder.path()).await;
    state(&channels, "ready").await;
    let mails = [
        "From: ann@corp.test\nMessage-ID: <1@x>\n\nno verdict\n".to_owned(),
        "Authentication-Results: evil.test; dmarc=pass header.from=corp.test\nFrom: ann@corp.test\nMessage-ID: <2@x>\n\nother server\n".to_owned(),
        "Authentication-Results: mx.test; dmarc=fail header.from=corp.test\nAuthentication-Results: mx.test; dmarc=pass header.from=corp.test\nFrom: ann@corp.test\nMessage-ID: <3@x>\n\nthe sender's own header\n".to_owned(),
        format!("{PASSED}From: ann@corp.test, eve@evil.test\nMessage-ID: <4@x>\n\ntwo senders\n"),
        format!("{PASSED}From: \"ann@corp.test\" <eve@evil.test>\nMessage-ID: <5@x>\n\na name\n"),
        format!("{PASSED}From: ann@corp.test\nAuto-Submitted: auto-replied\nMessage-ID: <6@x>\n\nanother bot\n"),
        format!("{PASSED}From: ann@corp.test\nPrecedence: bulk\nMessage-ID: <7@x>\n\nbulk\n"),
        format!("{PASSED}From: ann@corp.test\nX-Clawk-Loop: other@bot.test\nMessage-ID: <8@x>\n\nloop\n"),
    ];
    for (n, mail) in mails.iter().enumerate() {
        servers.deliver(&n.to_string(), mail);
    }
    // Mails are taken in their order: the last one is answered, the ones before were not.
    servers.deliver(
        "9",
        &format!("{PASSED}From: ann@corp.test\nMessage-ID: <9@x>\n\nsay genuine\n"),
    );
    until(|| async { servers.sent().len() == 1 }).await;
    assert!(servers.sent().remove(0).contains("genuine"));
    assert_eq!(rig.journal.inbox().len(), 1);
    let reasons = reasons(&rig);
    for word in [
        "not listed",
        "several senders",
        "Auto-Submitted",
        "Precedence",
        "X-Clawk-Loop",
    ] {
        assert!(
            reasons.iter().any(|reason| reason.contains(word)),
            "{word}: {reasons:?}"
        );
    }
    channels.close().await;
}

#[tokio::test]
async fn a_mails_files_stay_in_their_folder() {
    let servers = Servers::new();
    let rig = parrot(email(&json!({"mode": "open"})));
    let folder = tempfile::tempdir().unwrap();
    let workdir = folder.path().join("channels");
    std::fs::create_dir_all(&workdir).unwrap();
    let (_kernel, channels) = on(&rig, "post", servers.email(), &workdir).await;
    state(&channels, "ready").await;
    servers.deliver("1", "From: ann@corp.test\nMessage-ID: <1@x>\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\nsay see\n--b\nContent-Type: application/pdf\nContent-Disposition: attachment; filename=\"../../x\"\nContent-Transfer-Encoding: base64\n\naGVsbG8=\n--b--\n");
    until(|| async { servers.sent().len() == 1 }).await;
    let kept = std::fs::read(workdir.join("attachments/2cf24dba5fb0-x")).unwrap();
    assert_eq!(kept, b"hello");
    assert!(!folder.path().join("x").exists());
    // And out: to an address, as parts of one mail.
    let files = [clawk_channels::OutFile::new(
        "../a \"b\"\r\nX-Evil: 1.csv",
        bytes::Bytes::from_static(b"a,b\n1,2\n"),
    )];
    let id = clawk_proto::MessageId("0197f3a0-0000-7000-8000-000000000001".parse().unwrap());
    let sent = channels
        .send_text("post", "ann@corp.test", "Here it is.", &files, id)
        .await
        .unwrap();
    assert!(
        matches!(sent, clawk_kernel::ports::Delivery::Delivered { .. }),
        "{sent:?}"
    );
    until(|| async { servers.sent().len() == 2 }).await;
    let mail = servers.sent().remove(1);
    assert!(
        mail.contains("Here it is.") && mail.contains("multipart/mixed"),
        "{mail}"
    );
    assert!(
        mail.contains("Content-Disposition: attachment") && mail.replace('\r', "").contains("\na,b\n1,2\n"),
        "{mail}"
    );
    let heads: Vec<&str> = mail.lines().filter(|line| line.starts_with("X-Evil")).collect();
    assert_eq!(heads, Vec::<&str>::new(), "a name is no header: {mail}");
    channels.close().await;
}

#[tokio::test]
async fn each_mail_of_a_mailbox_begins_one_run_and_no_more_than_may_run_at_a_time() {
    let servers = Servers::new();
    let rig = parrot(
        json!([{"name": "mails", "type": "imap", "transport": "stdio", "auth": {"secret_ref": "TOKEN"},
        "trigger": {"mailbox": "INBOX", "max_parallel": 1}}]),
    );
    rig.runner.set("write", Behaviour::Sleep(300));
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"url": format!("imap://agent@127.0.0.1:{}", servers.imap), "prompt": "say {event}"});
    let (kernel, channels) = on(&rig, "mails", config.clone(), folder.path()).await;
    state(&channels, "ready").await;
    for n in 0..3 {
        servers.deliver(
            &n.to_string(),
            &format!("From: shop@corp.test\nSubject: Order {n}\nMessage-ID: <{n}@x>\n\nOne of {n}\n"),
        );
    }
    until(|| async {
        rig.journal
            .inbox()
            .iter()
            .filter(|(_, end)| end.is_some())
            .count()
            == 3
    })
    .await;
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    let (_kernel, channels) = on(&rig, "mails", config, folder.path()).await;
    state(&channels, "ready").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(rig.journal.inbox().len(), 3, "nothing is read twice");
    assert_eq!(servers.sent().len(), 0, "a trigger answers nobody");
    channels.close().await;
}

#[tokio::test]
async fn a_wrong_password_fails_the_channel_and_says_so() {
    let servers = Servers::new();
    let rig = parrot(
        json!([{"name": "post", "type": "email", "transport": "polling", "auth": {"secret_ref": "WRONG"}}]),
    );
    let folder = tempfile::tempdir().unwrap();
    let (_kernel, channels) = on(&rig, "post", servers.email(), folder.path()).await;
    state(&channels, "failed").await;
    let reason = channels
        .channel_reports()
        .await
        .unwrap()
        .remove(0)
        .reason
        .unwrap();
    assert!(reason.contains("refuses the login"), "{reason}");
    assert!(!reason.contains("other"), "no password is shown: {reason}");
    channels.close().await;
}
