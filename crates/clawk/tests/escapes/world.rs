//! A little host for one run: folders, canaries, servers, a process; and what became of them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The user without powers.
pub(crate) const NOBODY: u32 = 65534;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The agent that the box is of: what its start reads, a tool must not change.
const MANIFEST: &str = r#"
claw: "0.3.0"
kind: Claw
metadata: { name: world }
spec:
  identity: { inline: { name: world, personality: Tested, autonomy: autonomous } }
  providers: [{ inline: { name: main, protocol: custom, endpoint: "script:none.yaml", model: scripted, auth: { type: none } } }]
  channels: [{ inline: { name: here, type: cli, transport: stdio, auth: { secret_ref: NONE } } }]
  policies: ["rules/*.yaml"]
"#;
const RULES: &str = "claw: \"0.3.0\"\nkind: Policy\nmetadata: { name: p }\nspec: { rules: [{ id: all, action: allow, scope: all }] }\n";

pub(crate) struct World {
    pub(crate) root: tempfile::TempDir,
    pub(crate) nobody: bool,
    pub(crate) tag: String,
    pub(crate) canary: String,
    tcp: Vec<TcpListener>,
    udp: UdpSocket,
    streams: Vec<UnixListener>,
    datagrams: UnixDatagram,
    pub(crate) holder: Child,
    before: BTreeMap<PathBuf, String>,
}

/// How the script is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Box,
    /// A box that has waited for it.
    Warm,
    None,
    Plain,
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The words that run the rest as the user without powers.
fn as_nobody(nobody: bool) -> Vec<String> {
    let words = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    if nobody {
        words.map(str::to_owned).to_vec()
    } else {
        Vec::new()
    }
}

impl World {
    pub(crate) fn new(nobody: bool) -> Self {
        let tag = format!(
            "{}{:04}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let canary = format!("LEAK-{tag}-KAEL");
        let root = tempfile::Builder::new().prefix("esc").tempdir_in("/tmp").unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for folder in ["work", "work/denied", "work/rules", "outside", "ro"] {
            std::fs::create_dir(at(folder)).unwrap();
        }
        for (name, text) in [
            ("outside/canary", canary.as_str()),
            ("outside/victim", "victim\n"),
            ("ro/keep", "keep\n"),
            ("work/.env", &canary),
            ("work/denied/secret", &canary),
            ("work/sub.key", &canary),
            ("work/fine2", "fine\n"),
            ("work/claw.yaml", MANIFEST),
            ("work/rules/p.yaml", RULES),
        ] {
            std::fs::write(at(name), text).unwrap();
        }
        std::fs::hard_link(at("work/.env"), at("work/hard")).unwrap();
        symlink(at("outside/canary"), at("work/trap")).unwrap();
        symlink(at("outside/canary"), at("ro/trap")).unwrap();
        symlink(at("outside"), at("work/trapdir")).unwrap();
        symlink(at("outside/victim"), at("work/traps")).unwrap();
        symlink(at("outside/sock"), at("work/socktrap")).unwrap();
        let (tcp, udp) = servers();
        let abstracted = |name: String| SocketAddr::from_abstract_name(name).unwrap();
        let streams = vec![
            UnixListener::bind_addr(&abstracted(format!("esc{tag}"))).unwrap(),
            UnixListener::bind(at("outside/sock")).unwrap(),
            UnixListener::bind(at("work/sock")).unwrap(),
        ];
        let datagrams = UnixDatagram::bind_addr(&abstracted(format!("esc{tag}d"))).unwrap();
        streams.iter().for_each(|one| one.set_nonblocking(true).unwrap());
        datagrams.set_nonblocking(true).unwrap();
        for socket in ["outside/sock", "work/sock"] {
            std::fs::set_permissions(at(socket), std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        if nobody {
            own(root.path());
        }
        let holder = hold(&at("outside"), &tag, &canary, nobody);
        let mut world = Self {
            root,
            nobody,
            tag,
            canary,
            tcp,
            udp,
            streams,
            datagrams,
            holder,
            before: BTreeMap::new(),
        };
        world.before = world.guarded();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn port(&self) -> u16 {
        self.tcp[0].local_addr().unwrap().port()
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        vec![
            ("W", text(self.root.path().to_owned())),
            ("OUT", text(self.path("outside"))),
            ("PID", self.holder.id().to_string()),
            ("PORT", self.port().to_string()),
            ("UPORT", self.udp.local_addr().unwrap().port().to_string()),
            ("ABS", format!("esc{}", self.tag)),
            ("SOCK", text(self.path("outside/sock"))),
            ("TAG", self.tag.clone()),
        ]
    }

    /// Runs a script to its end and gives all that it said.
    pub(crate) fn run(&self, how: How, script: &str, limits: &[&str], stdin: &str) -> String {
        let work = self.path("work");
        let mut words = as_nobody(self.nobody);
        let script = format!("echo ran-{}\n{script}", self.tag);
        if how != How::Plain {
            words.extend([super::program(), "sandbox", "run", "-q", "-i", "--workdir"].map(str::to_owned));
            words.push(work.to_str().unwrap().to_owned());
            words.extend(limits.iter().map(|word| (*word).to_owned()));
            for (name, value) in self.variables() {
                words.extend(["--env".to_owned(), format!("{name}={value}")]);
            }
            match how {
                How::Box | How::Warm => {
                    if how == How::Warm {
                        words.push("--warm".to_owned());
                    }
                    words.extend(["-f", "claw.yaml"].map(str::to_owned));
                    let ro = format!("{}:ro", self.path("ro").display());
                    for word in [
                        "--mount", ".:rw", "--mount", &ro, "--deny", ".env", "--deny", "denied", "--deny",
                        "*.key",
                    ] {
                        words.push(word.to_owned());
                    }
                }
                How::None | How::Plain => words.extend(["--level".to_owned(), "none".to_owned()]),
            }
            words.push("--".to_owned());
        }
        words.extend(["/bin/sh".to_owned(), "-c".to_owned(), script]);
        // What the caller holds open, and its variables, are no business of the box.
        #[expect(clippy::disallowed_methods, reason = "the program under test")]
        let mut child = Command::new("timeout")
            .args(["20", "/bin/sh", "-c", "exec 7<\"$OUT/canary\"; exec \"$@\"", "sh"])
            .args(&words)
            .env_clear()
            .envs(self.variables())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", &work)
            .env("CLAWK_TEST_SECRET", &self.canary)
            .current_dir(&work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let _ = input.write_all(stdin.as_bytes()); // silent-ok: a script need not read it
        drop(input);
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// What `clawk sandbox run` says with these words, in `work`.
    pub(crate) fn tried(&self, words: &[&str], script: &str) -> String {
        #[expect(clippy::disallowed_methods, reason = "the program under test")]
        let output = Command::new(super::program())
            .args(["sandbox", "run", "-q"])
            .args(words)
            .args(["--", "/bin/sh", "-c", script])
            .current_dir(self.path("work"))
            .env_remove("CLAWK_TEST_SECRET")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// All that no box may change: paths with mode, owner, date and content.
    fn guarded(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        for name in [
            "outside",
            "ro",
            "work/denied",
            "work/.env",
            "work/sub.key",
            "work/claw.yaml",
            "work/clawk.toml",
            "work/rules",
        ] {
            look(&self.path(name), &mut found);
        }
        found
    }

    pub(crate) fn changed(&self) -> bool {
        self.guarded() != self.before
    }

    /// A set-id file, a device or a capability lies in the writable mount.
    pub(crate) fn armed(&self) -> bool {
        let mut found = BTreeMap::new();
        look(&self.path("work"), &mut found);
        found.keys().any(|path| {
            let Ok(meta) = path.symlink_metadata() else {
                return false;
            };
            let device = matches!(meta.mode() & 0o170_000, 0o020_000 | 0o060_000);
            let mut value = [0_u8; 64];
            let able = rustix::fs::lgetxattr(path, "security.capability", &mut value[..]).is_ok();
            device || able || (!path.is_symlink() && meta.mode() & 0o6000 != 0)
        })
    }

    /// A server of the host was reached.
    pub(crate) fn hit(&self) -> bool {
        std::thread::sleep(Duration::from_millis(5));
        self.tcp.iter().any(|one| one.accept().is_ok())
            || self.streams.iter().any(|one| one.accept().is_ok())
            || self.udp.recv(&mut [0; 8]).is_ok()
            || self.datagrams.recv(&mut [0; 8]).is_ok()
    }

    /// Processes of the script that live on; ended here.
    pub(crate) fn alive(&self) -> bool {
        std::thread::sleep(Duration::from_millis(150));
        let word = format!("8.{}", self.tag);
        let mut any = false;
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
                && String::from_utf8_lossy(&line).contains(&word)
            {
                any = true;
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL); // silent-ok: it ended
            }
        }
        any
    }

    /// Answers HTTP for as long as `work` takes.
    pub(crate) fn serving<T>(&self, work: impl FnOnce() -> T) -> T {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(20);
                while !done.load(Ordering::Relaxed) && Instant::now() < until {
                    if let Ok((mut stream, _)) = self.tcp[0].accept() {
                        stream.set_nonblocking(false).unwrap();
                        let _ = stream.read(&mut [0; 4096]); // silent-ok: a client that went away
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\nConnection: close\r\n\r\nserved by the host");
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let result = work();
            done.store(true, Ordering::Relaxed);
            result
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.holder.kill(); // silent-ok: a case may have ended it
        let _ = self.holder.wait(); // silent-ok: see above
    }
}

fn servers() -> (Vec<TcpListener>, UdpSocket) {
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = first.local_addr().unwrap().port();
    let mut tcp = vec![first];
    tcp.extend(
        ["127.9.8.7", "127.255.255.254"]
            .iter()
            .filter_map(|one| TcpListener::bind((*one, port)).ok()),
    );
    tcp.iter().for_each(|one| one.set_nonblocking(true).unwrap());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_nonblocking(true).unwrap();
    (tcp, udp)
}

/// A process with the canary in its arguments, its variables and as descriptor 9.
fn hold(folder: &Path, tag: &str, canary: &str, nobody: bool) -> Child {
    use std::os::unix::process::CommandExt;
    let mut words = as_nobody(nobody);
    let script =
        format!("exec 9<canary; exec perl -e 'print 1; close STDOUT; sleep 60' canary-holder-{tag} {canary}");
    words.extend(["/bin/sh".to_owned(), "-c".to_owned(), script]);
    #[expect(clippy::disallowed_methods, reason = "a process of the host")]
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env("CANARY", canary)
        .current_dir(folder)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdout.take().unwrap().read(&mut [0; 1]); // silent-ok: it is there
    child
}

fn own(path: &Path) {
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        std::fs::read_dir(path)
            .unwrap()
            .flatten()
            .for_each(|entry| own(&entry.path()));
    }
}

fn look(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let Ok(meta) = path.symlink_metadata() else { return };
    let content = if meta.is_file() {
        std::fs::read(path).unwrap_or_default()
    } else {
        Vec::new()
    };
    // A folder's date changes with what is in it, which is looked at itself.
    let date = if meta.is_dir() { 0 } else { meta.mtime() };
    found.insert(
        path.to_owned(),
        format!(
            "{:o} {} {} {date} {content:?}",
            meta.mode(),
            meta.uid(),
            meta.gid()
        ),
    );
    if meta.is_dir() {
        std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .for_each(|entry| look(&entry.path(), found));
    }
}
