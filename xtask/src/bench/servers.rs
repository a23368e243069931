//! Message brokers and a database on the loopback address, with their files in the measurement's folder. `tests/parts/install.sh`
//! installs the programs; Redis is the system's package.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::several::Running;
use crate::parts;
use crate::run::{command, output};

/// Time limit for the start or the end of a server.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a port that is free now.
fn port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits until the server accepts connections.
fn listens(running: &mut Running, port: u16) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(
            running.0.try_wait()?.is_none() && Instant::now() < until,
            "a server does not listen"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A broker process. It is ended when this value is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) url: String,
    _running: Running,
}

/// Starts NATS with JetStream in its default configuration.
pub(crate) fn nats(folder: &Path) -> Result<Broker> {
    let port = port()?;
    let mut command = command(parts::dir()?.join("nats/bin/nats-server"));
    command
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
        .arg(folder.join("nats"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut running = Running(child.context("no NATS: run tests/parts/install.sh")?);
    listens(&mut running, port)?;
    Ok(Broker {
        url: format!("nats://127.0.0.1:{port}"),
        _running: running,
    })
}

/// Starts Redis with a file sync for every write, as a durable queue needs it.
pub(crate) fn redis(folder: &Path) -> Result<Broker> {
    let port = port()?;
    let mut command = command("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
        .arg(folder);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut running = Running(child.context("no `redis-server`")?);
    listens(&mut running, port)?;
    Ok(Broker {
        url: format!("redis://127.0.0.1:{port}"),
        _running: running,
    })
}

/// A PostgreSQL server with syncs enabled and the user `clawk`. It is ended when this value is dropped.
#[derive(Debug)]
pub(crate) struct Database {
    port: u16,
    running: Running,
}

impl Database {
    pub(crate) const PASSWORD: &str = "of-a-benchmark";

    /// Creates a database cluster and starts the server.
    ///
    /// # Errors
    /// The server does not start.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let (data, password) = (folder.join("data"), folder.join("password"));
        fs::write(&password, Self::PASSWORD)?;
        let mut made = ordinary("initdb")?;
        made.args([
            "--username=clawk",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ])
        .arg(format!("--pwfile={}", password.display()))
        .arg("--pgdata")
        .arg(&data);
        output(&mut made)?;
        let port = port()?;
        let log = File::create(folder.join("log"))?;
        let mut server = ordinary("postgres")?;
        server.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for line in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=100",
        ] {
            server.args(["-c", line]);
        }
        let mut running = Running(server.stdout(Stdio::null()).stderr(log).spawn()?);
        listens(&mut running, port)?;
        let database = Self { port, running };
        let until = Instant::now() + PATIENCE;
        let mut asked = command(programs()?.join("pg_isready"));
        asked.args(["-q", "-d", &database.url()]);
        while !asked.status()?.success() {
            ensure!(Instant::now() < until, "the database does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(database)
    }

    /// Returns the server's URL without the password.
    pub(crate) fn url(&self) -> String {
        format!("postgres://clawk@127.0.0.1:{}/postgres", self.port)
    }

    /// Runs a statement and returns its unaligned output.
    ///
    /// # Errors
    /// The server refuses the statement.
    pub(crate) fn sql(&self, sql: &str) -> Result<String> {
        let mut psql = command(programs()?.join("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", &self.url()])
            .args(["-c", sql])
            .env("PGPASSWORD", Self::PASSWORD);
        Ok(output(&mut psql)?.trim().to_owned())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Send a signal first, so that the server ends its own children.
        let pid = self.running.pid().to_string();
        let _told = command("kill").args(["-QUIT", &pid]).status(); // silent-ok: it is killed below
        let until = Instant::now() + PATIENCE;
        while matches!(self.running.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Writes `secrets.toml` with the database's password as `PG_PASSWORD`.
///
/// # Errors
/// The folder can't be written.
pub(crate) fn secrets(folder: &Path) -> Result<()> {
    let path = folder.join("secrets.toml");
    fs::write(&path, format!("PG_PASSWORD = \"{}\"\n", Database::PASSWORD))?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?)
}

/// Makes a command that does not run as root, because the server refuses root. For root it uses a user namespace with another user
/// id; the files stay root's.
fn ordinary(program: &str) -> Result<std::process::Command> {
    let path = programs()?.join(program);
    let root = output(command("id").arg("-u"))?.trim() == "0";
    let mut made = if root {
        let mut made = command("unshare");
        made.args(["--user", "--map-user=1000", "--map-group=1000", "--", "setpriv"]);
        made
    } else {
        command("setpriv")
    };
    made.args(["--pdeathsig", "QUIT", "--"])
        .arg(path)
        .env("LC_ALL", "C");
    Ok(made)
}

fn programs() -> Result<PathBuf> {
    let programs = parts::dir()?.join("postgres/pg/bin");
    ensure!(
        programs.join("postgres").is_file(),
        "no PostgreSQL: run tests/parts/install.sh"
    );
    Ok(programs)
}
