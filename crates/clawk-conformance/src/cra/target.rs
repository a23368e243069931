//! The implementation under test, and how it is reached.

use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clawk_core::time::{Clock, SystemClock};
use clawk_secrets::Secret;
use serde_json::json;
use tempfile::TempDir;

use super::adapter::CraAdapter;
use super::api::{CraApi, CraAuth};
use super::complete::AtlasPackage;
use super::golden;
use super::report::CraShortfall;
use super::session::text_member;
use crate::target::build_command;

/// Time limit for a server to answer `/v1/health`.
const START: Duration = Duration::from_secs(20);
/// Environment variable with the token that a started server must require.
pub(super) const TOKEN_ENV: &str = "CRA_TOKEN";
/// The verb of clawk's own adapter.
pub const ADAPTER_VERB: &str = "__cra";

/// An implementation under test.
pub struct CraTarget {
    name: String,
    adapter: Option<(ProgramLaunch, OnceLock<Result<CraAdapter, String>>)>,
    server: Option<CraServer>,
}

impl fmt::Debug for CraTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &mut f.debug_struct("CraTarget");
        target.field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a program is started.
enum ProgramLaunch {
    /// A command line for `sh -c`.
    Line(String),
    /// clawk itself.
    Own(PathBuf),
}

enum CraServer {
    /// The server is already running.
    Url(CraApi),
    /// A program that is started once for each set of Atlases.
    Started(ProgramLaunch),
}

/// A server for one case. Dropping it ends the started process and removes the uploaded Atlases.
pub(super) struct CraServerInstance<'t> {
    pub(super) api: CraApi,
    started: Option<(Child, TempDir)>,
    sent: Vec<String>,
    _target: std::marker::PhantomData<&'t CraTarget>,
}

impl CraTarget {
    /// clawk itself: its adapter, and its API started for each case.
    pub fn for_clawk(program: PathBuf) -> Self {
        Self {
            name: "clawk".to_owned(),
            adapter: Some((ProgramLaunch::Own(program.clone()), OnceLock::new())),
            server: Some(CraServer::Started(ProgramLaunch::Own(program))),
        }
    }

    /// Parses a target: a URL; a command that starts a server, if it holds `{port}`; else a command that is an adapter.
    ///
    /// # Errors
    /// The URL is none.
    pub fn parse(given: &str, token: Option<Secret>) -> Result<Self> {
        let name = given.to_owned();
        let line = || ProgramLaunch::Line(name.clone());
        let (adapter, server) = if given.starts_with("http://") || given.starts_with("https://") {
            (None, Some(CraServer::Url(CraApi::new(given, token)?)))
        } else if given.contains("{port}") {
            (None, Some(CraServer::Started(line())))
        } else {
            (Some((line(), OnceLock::new())), None)
        };
        Ok(Self {
            name,
            adapter,
            server,
        })
    }

    /// Returns the name and version for the report.
    pub(super) fn name_and_version(&self) -> (String, String) {
        if let Ok(adapter) = self.adapter()
            && let Ok(Some(about)) = adapter.ask_method("cra.about", &json!({}))
            && let (Some(name), Some(version)) = (
                text_member(&about, "implementation"),
                text_member(&about, "version"),
            )
        {
            return (name, version);
        }
        if let Some(CraServer::Url(api)) = &self.server
            && let Ok(health) = api.send_request("GET", "/v1/health", None, CraAuth::None, None)
            && let Some(version) = text_member(&health.body_json(), "version")
        {
            return (self.name.clone(), version);
        }
        (self.name.clone(), "unknown".to_owned())
    }

    /// Returns the adapter, and starts it at the first request.
    ///
    /// # Errors
    /// There is no adapter (the case is skipped), or it does not start.
    pub(super) fn adapter(&self) -> Result<&CraAdapter, CraShortfall> {
        let Some((door, started)) = &self.adapter else {
            return Err(CraShortfall::Skipped(
                "only an adapter can be asked this".to_owned(),
            ));
        };
        let started = started.get_or_init(|| {
            let mut command = match door {
                ProgramLaunch::Line(line) => through_shell(line),
                ProgramLaunch::Own(program) => build_command(program),
            };
            if matches!(door, ProgramLaunch::Own(_)) {
                command.arg(ADAPTER_VERB);
            }
            CraAdapter::start(command).map_err(|error| format!("{error:#}"))
        });
        started.as_ref().map_err(|error| anyhow!("{error}").into())
    }

    /// Returns whether there is an adapter.
    pub(super) const fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    /// Returns whether there is an HTTP API.
    pub(super) const fn has_api(&self) -> bool {
        self.server.is_some()
    }

    /// Returns the API under these Atlases; `None` if the target has no API.
    pub(super) fn serve_api(
        &self,
        atlases: &[AtlasPackage],
    ) -> Result<Option<CraServerInstance<'_>>, CraShortfall> {
        match &self.server {
            None => Ok(None),
            Some(CraServer::Url(api)) => send_manifests(api, atlases).map(Some),
            // A server can't be started without an Atlas.
            Some(CraServer::Started(door)) if atlases.is_empty() => {
                Ok(Some(door.serve_api(&[golden::load_package("simple-resolve")?])?))
            }
            Some(CraServer::Started(door)) => Ok(Some(door.serve_api(atlases)?)),
        }
    }
}

/// Uploads manifests to a running server. Files can't be uploaded.
fn send_manifests<'t>(api: &CraApi, atlases: &[AtlasPackage]) -> Result<CraServerInstance<'t>, CraShortfall> {
    let mut served = CraServerInstance {
        api: api.clone(),
        started: None,
        sent: Vec::new(),
        _target: std::marker::PhantomData,
    };
    for package in atlases {
        if !package.files.is_empty() {
            let why = "an Atlas's files cannot be sent over the API; start the server through a command with `{atlas}`";
            return Err(CraShortfall::Skipped(why.to_owned()));
        }
        let answer = api.send_request(
            "POST",
            "/v1/atlases",
            Some(&package.manifest),
            CraAuth::Bearer,
            None,
        )?;
        if answer.status != 201 {
            return Err(CraShortfall::from_mismatch(
                "the Atlas to be taken (201)",
                answer.status,
                answer.body_json(),
            ));
        }
        served.sent.extend(text_member(&package.manifest, "atlas_id"));
    }
    Ok(served)
}

impl ProgramLaunch {
    fn serve_api<'t>(&self, atlases: &[AtlasPackage]) -> Result<CraServerInstance<'t>> {
        let dir = TempDir::new().context("no temporary directory")?;
        for (number, package) in atlases.iter().enumerate() {
            write(&dir.path().join(format!("atlas-{number}")), package)?;
        }
        let port = free_port()?;
        let token = Secret::new(TOKEN_ENV, SystemClock::default().new_uuid().simple().to_string());
        let mut command = match self {
            Self::Line(line) => {
                let first = dir.path().join("atlas-0");
                through_shell(
                    &line
                        .replace("{port}", &port.to_string())
                        .replace("{atlas}", &first.display().to_string())
                        .replace("{state}", &dir.path().join("state").display().to_string()),
                )
            }
            Self::Own(program) => own_server(program, dir.path(), port, atlases.len())?,
        };
        command
            .env(TOKEN_ENV, token.expose())
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("stderr"))?);
        let child = command.spawn().context("the server could not be started")?;
        let mut served = CraServerInstance {
            api: CraApi::new(&format!("http://127.0.0.1:{port}"), Some(token))?,
            started: Some((child, dir)),
            sent: Vec::new(),
            _target: std::marker::PhantomData,
        };
        served.until_healthy()?;
        Ok(served)
    }
}

/// Returns the command for clawk as a CRA server, with one token that may do everything.
fn own_server(program: &Path, dir: &Path, port: u16, atlases: usize) -> Result<Command> {
    let config = format!(
        "[[http.tokens]]\nname = \"conformance\"\nsecret_ref = \"{TOKEN_ENV}\"\nscopes = [\"admin\"]\n"
    );
    std::fs::write(dir.join("clawk.toml"), config)?;
    let mut command = build_command(program);
    command
        .args([
            "serve",
            "--simulate",
            "--http",
            &format!("127.0.0.1:{port}"),
            "--config",
        ])
        .arg(dir.join("clawk.toml"))
        .arg("--state")
        .arg(dir.join("state"));
    for number in 0..atlases {
        command.arg("--atlas").arg(dir.join(format!("atlas-{number}")));
    }
    Ok(command)
}

impl CraServerInstance<'_> {
    fn until_healthy(&mut self) -> Result<()> {
        let until = Instant::now() + START;
        loop {
            let answer = self
                .api
                .send_request("GET", "/v1/health", None, CraAuth::None, None);
            if answer.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            let Some((child, dir)) = &mut self.started else {
                bail!("the server does not answer /v1/health");
            };
            let ended = child.try_wait()?;
            if ended.is_some() || Instant::now() > until {
                let said = std::fs::read_to_string(dir.path().join("stderr")).unwrap_or_default(); // silent-ok: it adds to an error
                let how = ended.map_or_else(
                    || format!("is not healthy after {} s", START.as_secs()),
                    |status| format!("ended ({status})"),
                );
                bail!("the server {how}: {}", said.trim());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for CraServerInstance<'_> {
    fn drop(&mut self) {
        for id in &self.sent {
            let path = format!("/v1/atlases/{id}");
            // silent-ok: if the server keeps an Atlas, the next case fails and shows it
            let _ = self
                .api
                .send_request("DELETE", &path, None, CraAuth::Bearer, None);
        }
        if let Some((child, _)) = &mut self.started {
            // silent-ok: the process exited by itself
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Writes an Atlas as a folder.
pub(super) fn write(dir: &Path, package: &AtlasPackage) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::write(
        dir.join("atlas.json"),
        serde_json::to_vec_pretty(&package.manifest)?,
    )?;
    for (name, text) in &package.files {
        let path = dir.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, text)?;
    }
    Ok(())
}

fn through_shell(line: &str) -> Command {
    let mut command = build_command("sh");
    command.arg("-c").arg(format!("exec {line}"));
    command
}

/// Returns a port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}
