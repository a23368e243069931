//! Builds the tools' egress proxies from `[egress]` and `[secrets]`, with the leak scanner that checks their requests.

use std::sync::Arc;

use clawk_egress::{EgressSecret, ScreenVerdict, SecretScan, SecretScreen};
use clawk_manifest::Manifest;
use clawk_manifest::model::ScanAction;
use clawk_policy::leak::{KnownSecret, LeakRedactingStream, Scanner};
use clawk_secrets::SecretResolver;
use clawk_tools::EgressSettings;

use crate::config::{MemoryStore, SecretBinding, Settings};

/// Builds the dependencies of the tools' network access.
///
/// # Errors
/// The bindings that are not usable: the secret is not found, or the binding names no header, variable or host.
pub(super) fn egress_settings(
    settings: &Settings,
    manifest: &Manifest,
    resolver: &SecretResolver,
) -> Result<EgressSettings, Vec<String>> {
    let (mut bindings, mut faults) = (Vec::new(), Vec::new());
    for (name, given) in &settings.secrets {
        match resolve_binding(name, given, resolver) {
            Ok(binding) => bindings.push(Arc::new(binding)),
            Err(fault) => faults.push(format!("`[secrets.{name}]`: {fault}")),
        }
    }
    for entry in &settings.egress.allow_private {
        if entry.exact_host().is_none() {
            faults.push(format!(
                "`[egress] allow_private`: `{entry}` is a pattern; name each place of the own network"
            ));
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(EgressSettings {
        allow_private: settings.egress.allow_private.clone(),
        terminate_tls: settings.egress.terminate_tls,
        screen: scan_action(manifest).map(|action| {
            let known = known_secrets(settings, manifest, resolver, &bindings);
            let scanner = Scanner::new(known);
            Arc::new(LeakScreen { scanner, action }) as Arc<dyn SecretScreen>
        }),
        bindings,
    })
}

fn resolve_binding(
    name: &str,
    given: &SecretBinding,
    resolver: &SecretResolver,
) -> Result<EgressSecret, String> {
    let env = given.env.as_deref().unwrap_or(name);
    let named = |text: &str| {
        let fits =
            |(at, c): (usize, char)| c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit());
        !text.is_empty() && text.chars().enumerate().all(fits)
    };
    if !named(env) {
        return Err(format!("`{env}` is not a valid name of a variable; set `env`"));
    }
    if given.tools.is_empty() || given.hosts.is_empty() {
        return Err("`tools` and `hosts` must name at least one each".to_owned());
    }
    if http::HeaderName::from_bytes(given.header.as_bytes()).is_err() {
        return Err(format!("`{}` is not a valid header", given.header.escape_debug()));
    }
    if let Some(wide) = given.hosts.iter().find(|host| host.domain().is_none()) {
        return Err(format!(
            "`hosts`: `{wide}` is every host; a secret is bound to some"
        ));
    }
    Ok(EgressSecret {
        secret: resolver.resolve(name).map_err(|error| error.to_string())?,
        tools: given.tools.clone(),
        hosts: given.hosts.clone(),
        header: given.header.clone(),
        env: env.to_owned(),
        prefix: given.prefix.clone(),
        plain_http: given.plain_http,
    })
}

/// Returns what to do with a secret in a request, by the strictest policy. `None`: no policy asks for scanning.
fn scan_action(manifest: &Manifest) -> Option<ScanAction> {
    let asked = manifest
        .policies
        .iter()
        .filter_map(|policy| policy.secret_scanning.as_ref())
        .filter(|scanning| scanning.enabled)
        .map(|scanning| scanning.action);
    let strictness = |action: &ScanAction| match action {
        ScanAction::Warn => 0,
        ScanAction::Redact => 1,
        ScanAction::Block => 2,
    };
    let boxed = manifest
        .sandboxes()
        .any(|sandbox| sandbox.capabilities.secrets.leak_detection.enabled);
    asked
        .max_by_key(strictness)
        .or_else(|| boxed.then_some(ScanAction::Redact))
}

/// Returns every secret that the manifest's providers and `clawk.toml` name, unless reading it needs a program. A store's command
/// may ask a person or take seconds, so it runs at the first use; before that the value is nowhere in memory.
pub(super) fn secret_names<'a>(
    settings: &'a Settings,
    manifest: &'a Manifest,
) -> impl Iterator<Item = &'a str> {
    let providers = manifest.providers.iter();
    let providers = providers.filter_map(|provider| provider.auth.secret_ref.as_deref());
    let at_once = settings.secrets_store.command.is_none();
    providers.chain(of_servers(settings)).filter(move |_| at_once)
}

/// Returns every secret that `clawk.toml` names for tools, memory servers, `[postgres]` and `[qdrant]`.
pub(crate) fn of_servers(settings: &Settings) -> impl Iterator<Item = &str> {
    let tools = settings.tools.tools.values().flat_map(|tool| {
        let http = tool.http.iter().flat_map(|http| http.secret_headers.values());
        tool.secret_env
            .values()
            .chain(tool.secret_headers.values())
            .chain(http)
            .chain(tool.a2a.iter().flat_map(|other| other.secret_headers.values()))
            .chain(tool.search.iter().filter_map(|search| search.secret_ref.as_ref()))
    });
    let stores = settings
        .memory
        .stores
        .values()
        .flat_map(MemoryStore::secret_names);
    tools
        .chain(stores)
        .map(String::as_str)
        .chain(settings.postgres.secret_ref.as_deref())
        .chain(settings.qdrant.secret_ref.as_deref())
}

/// Returns the values that must not leave the machine: the named secrets that can be read without a program.
fn known_secrets(
    settings: &Settings,
    manifest: &Manifest,
    resolver: &SecretResolver,
    bindings: &[Arc<EgressSecret>],
) -> Vec<KnownSecret> {
    let bound = bindings.iter().map(|binding| binding.secret.clone());
    let others = secret_names(settings, manifest).filter_map(|name| resolver.resolve(name).ok()); // silent-ok: its use will say what is wrong with it
    bound
        .chain(others)
        .map(|secret| KnownSecret::new(secret.name(), secret.expose()))
        .collect()
}

/// The leak scanner for the proxy and the web tools.
#[derive(Debug)]
struct LeakScreen {
    scanner: Scanner,
    action: ScanAction,
}

struct LeakScreening {
    stream: LeakRedactingStream,
    action: ScanAction,
    told: usize,
}

impl SecretScreen for LeakScreen {
    fn begin_scan(&self) -> Box<dyn SecretScan> {
        Box::new(LeakScreening {
            stream: self.scanner.stream(),
            action: self.action,
            told: 0,
        })
    }
}

impl LeakScreening {
    fn screen_piece(&mut self, clean: &[u8], piece: &[u8], out: &mut Vec<u8>) -> ScreenVerdict {
        let kinds: Vec<String> = self
            .stream
            .leaks_found()
            .iter()
            .map(|(kind, _)| kind.to_owned())
            .collect();
        let count: usize = self.stream.leaks_found().iter().map(|(_, count)| count).sum();
        let new = std::mem::replace(&mut self.told, count) < count;
        match self.action {
            ScanAction::Block if count > 0 => return ScreenVerdict::Blocked(kinds.join(", ")),
            ScanAction::Block | ScanAction::Redact => out.extend_from_slice(clean),
            ScanAction::Warn => out.extend_from_slice(piece),
        }
        if new {
            ScreenVerdict::Noted(kinds)
        } else {
            ScreenVerdict::Clean
        }
    }
}

impl SecretScan for LeakScreening {
    fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> ScreenVerdict {
        let clean = self.stream.push(piece);
        self.screen_piece(&clean, piece, out)
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> ScreenVerdict {
        let clean = self.stream.finish();
        self.screen_piece(&clean, &[], out)
    }
}
