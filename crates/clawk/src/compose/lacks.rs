//! Finds what this machine or this build lacks for an agent (R41). `clawk validate` warns about it, `clawk doctor` fails the check
//! of the same name, and a start is refused with the same word. Nothing is started or contacted here.

use std::collections::BTreeMap;

use clawk_manifest::{Diagnostic, Manifest};
use clawk_plan::{Level, Plan};
use clawk_providers::ScriptAccess;
use clawk_sandbox::Launcher;
use clawk_secrets::{EnvironmentSource, SecretResolver, StoreConfig, env};

use super::{AUTO, Origin, ResolvedConfig, egress};
use crate::config::Config;

/// A tool has no executor.
pub(crate) const TOOLS: &str = "tools";
/// A provider can't be used.
pub(crate) const PROVIDER: &str = "provider";
/// `clawk.toml` contradicts the manifest or itself.
const CONFIG: &str = "config";

/// Returns the name of `clawk doctor`'s check for a level.
pub(crate) const fn of_level(level: Level) -> &'static str {
    match level {
        Level::None | Level::Process => "sandbox-process",
        Level::Wasm => "sandbox-wasm",
        Level::Container => "sandbox-container",
        Level::Vm => "sandbox-vm",
    }
}

/// Returns a warning for everything that would prevent this manifest's agent from starting here, as far as the files show.
pub(crate) fn find_missing(manifest: &Manifest, config: &Config) -> Vec<Diagnostic> {
    match ResolvedConfig::for_inspection(manifest.clone(), config.clone()) {
        Ok(blueprint) => blueprint.missing_parts(&unjudged_levels(config)),
        Err(error) => vec![missing_part(CONFIG, "", &format!("{error:#}"))],
    }
}

/// Returns the levels whose programs a file beside the manifest names. They run nothing here, so they can't be judged; the level is
/// given with the section that names the programs.
fn unjudged_levels(config: &Config) -> Vec<(Level, &'static str)> {
    let given = &config.settings.sandbox;
    let differ = [
        (
            Level::Container,
            "[sandbox.container]",
            given.container != clawk_sandbox::container::Settings::default(),
        ),
        (
            Level::Vm,
            "[sandbox.vm]",
            given.vm != clawk_sandbox::VmSettings::default(),
        ),
    ];
    let levels = differ.into_iter().filter(|(.., own)| config.beside && *own);
    levels.map(|(level, section, _)| (level, section)).collect()
}

fn missing_part(code: &'static str, pointer: &str, what: &str) -> Diagnostic {
    Diagnostic::warning(
        code,
        pointer,
        format!("the agent does not start on this machine: {what}"),
    )
}

fn unjudged_level(level: Level, section: &str) -> Diagnostic {
    let message = format!(
        "whether level `{level}` works on this machine is not checked here: `{section}` of the `clawk.toml` beside the manifest names its \
         programs, and only a start runs what a folder names"
    );
    Diagnostic::warning(of_level(level), "/spec/sandbox", message).with_help(
        "start the agent once, or put the section into your own `clawk.toml` (`clawk config` names the file)",
    )
}

impl ResolvedConfig {
    /// Resolves a manifest for inspection only: an `auto:` provider counts as scripted and every secret as known, so that no
    /// program is asked for one.
    fn for_inspection(mut manifest: Manifest, mut config: Config) -> anyhow::Result<Self> {
        for provider in &mut manifest.providers {
            if let Some(script) = provider.endpoint.strip_prefix(AUTO) {
                provider.endpoint = format!("script:{script}");
            }
        }
        config = config.running_nothing();
        config.settings.secrets_store = StoreConfig::default();
        let scripts = if config.allow_outside {
            ScriptAccess::Anywhere(manifest.dir.clone())
        } else {
            ScriptAccess::Inside(manifest.dir.clone())
        };
        let launcher = Launcher::default().with_levels(config.level_settings(None));
        let mut blueprint = Self::from_parts(
            (manifest, Origin::Atlases),
            config,
            scripts,
            Vec::new(),
            Vec::new(),
        )?;
        blueprint.resolver = blueprint.knowing_all();
        let _ = blueprint.launcher.set(launcher); // silent-ok: it was just made
        Ok(blueprint)
    }

    /// Returns a resolver that treats every secret as known.
    fn knowing_all(&self) -> SecretResolver {
        let settings = &self.config.settings;
        let bound = settings.secrets.keys().map(String::as_str);
        let secrets = bound.chain(egress::secret_names(settings, &self.manifest));
        let mut vars: BTreeMap<String, String> = secrets
            .map(|name| (name.to_owned(), "secret".to_owned()))
            .collect();
        let own = ["PATH", "HOME", "LANG"].map(|name| (name, env::non_empty(name)));
        vars.extend(
            own.into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?))),
        );
        SecretResolver::without_store(EnvironmentSource::Fixed(vars))
    }

    /// For `clawk doctor`: no program that the folder's `clawk.toml` names is asked for a secret.
    pub(crate) fn asking_nobody(mut self) -> Self {
        if self.config.beside && self.config.settings.secrets_store.command.is_some() {
            self.resolver = self.knowing_all();
        }
        self
    }

    fn missing_parts(&self, unjudged: &[(Level, &'static str)]) -> Vec<Diagnostic> {
        let all = |code, pointer, faults: Option<Vec<String>>| {
            let faults = faults.into_iter().flatten();
            faults
                .map(|fault| missing_part(code, pointer, &fault))
                .collect::<Vec<_>>()
        };
        let mut found = all(PROVIDER, "/spec/providers", self.build_providers().err());
        let bound = self.build_runner(None, None);
        let servers = bound.as_ref().map(clawk_tools::Runner::server_faults);
        found.extend(all(TOOLS, "/spec/tools", servers.ok())); // silent-ok: the faults follow
        found.extend(all(TOOLS, "/spec/tools", bound.err()));
        found.extend(all(CONFIG, "/spec/channels", Some(self.channel_faults())));
        found.extend(all(CONFIG, "/spec/memory", Some(self.memory_faults())));
        let bus = crate::peers::swarm_bus_fault(&self.manifest, &self.config.settings);
        found.extend(all(CONFIG, "/spec/swarm", bus.map(|fault| vec![fault])));
        found.extend(all(
            CONFIG,
            "/spec/world_models",
            Some(clawk_kernel::world_model_faults(&self.manifest)),
        ));
        let limits = self.config.settings.world_models.limits_fault();
        found.extend(all(CONFIG, "", limits.map(|fault| vec![fault])));
        let (plans, launcher) = (self.declared_plans(), self.launcher(None));
        for level in self.needed_levels() {
            if let Some((_, section)) = unjudged.iter().find(|(own, _)| *own == level) {
                found.push(unjudged_level(level, section));
                continue;
            }
            let mut here = plans.iter().filter(|plan| plan.level() == level);
            let available = here.try_for_each(Plan::check_available);
            let available = available.and_then(|()| launcher.level_availability(level));
            let refusal = available.err().map(|refusal| vec![refusal.to_string()]);
            found.extend(all(of_level(level), "/spec/sandbox", refusal));
        }
        found
    }
}
