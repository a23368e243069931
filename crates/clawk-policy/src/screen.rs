//! The screening settings of a manifest's policies, combined (CKP §5.8): the strictest setting of all counts.

use clawk_manifest::model::{self, InjectionAction, InjectionDetection, ScanAction, ScanScope};

use crate::{injection, input, leak};

/// What clawk screens, and what it does with findings. If several policies apply, the strictest setting holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScreeningPolicy {
    /// The requirements for inbound text.
    pub input: input::InputTextRules,
    /// The action for secrets in arguments, messages and new memories; `None`: no search.
    pub secrets_in: Option<ScanAction>,
    /// The action for secrets in results and errors; `None`: only known values are searched.
    pub secrets_out: Option<ScanAction>,
    /// How clawk searches for injected prompts.
    pub injection: Option<InjectionScreening>,
}

/// How clawk searches for injected prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InjectionScreening {
    /// Search with phrases.
    pub pattern: bool,
    /// Search with a model.
    pub judge: bool,
    /// The action for a finding; never [`InjectionAction::Ignore`], which means no search.
    pub action: InjectionAction,
}

impl ScreeningPolicy {
    /// Combines the settings of these policies.
    ///
    /// # Errors
    /// An unsupported setting: an unknown encoding or engine, or more patterns than exist.
    pub fn compile(policies: &[model::Policy]) -> Result<Self, String> {
        let blocks = policies
            .iter()
            .filter_map(|policy| policy.input_validation.as_ref());
        let input = input::InputTextRules::compile(blocks).map_err(|name| {
            format!("`input_validation.encoding`: `{name}` is not known; utf-8, ascii and latin-1 are")
        })?;
        let mut screen = Self {
            input,
            ..Self::default()
        };
        for policy in policies {
            if let Some(scan) = policy.secret_scanning.as_ref().filter(|scan| scan.enabled) {
                screen.add_secrets(&policy.name, scan)?;
            }
            if let Some(scan) = &policy.prompt_injection {
                screen.add_injection(&policy.name, scan)?;
            }
        }
        Ok(screen)
    }

    fn add_secrets(&mut self, policy: &str, scan: &model::SecretScanning) -> Result<(), String> {
        let have = leak::Scanner::shape_count();
        if scan.patterns > u64::try_from(have).unwrap_or(u64::MAX) {
            return Err(format!(
                "policy `{policy}` asks for {} patterns of secrets, there are {have}",
                scan.patterns
            ));
        }
        let stricter = |known: Option<ScanAction>| {
            Some(known.map_or(scan.action, |known| stricter_action(known, scan.action)))
        };
        if matches!(scan.scope, ScanScope::Input | ScanScope::Both) {
            self.secrets_in = stricter(self.secrets_in);
        }
        if matches!(scan.scope, ScanScope::Output | ScanScope::Both) {
            self.secrets_out = stricter(self.secrets_out);
        }
        Ok(())
    }

    fn add_injection(&mut self, policy: &str, scan: &model::PromptInjection) -> Result<(), String> {
        let (pattern, judge) = match scan.detection {
            InjectionDetection::Pattern => (true, false),
            InjectionDetection::LlmBased => (false, true),
            InjectionDetection::Hybrid => (true, true),
            InjectionDetection::None => return Ok(()),
        };
        if let Some(engine) = scan
            .pattern_engine
            .as_deref()
            .filter(|engine| *engine != "aho-corasick")
        {
            return Err(format!(
                "policy `{policy}`: the pattern engine `{engine}` is not known; `aho-corasick` is"
            ));
        }
        let have = injection::pattern_count();
        if scan
            .pattern_count
            .is_some_and(|wanted| wanted > u64::try_from(have).unwrap_or(u64::MAX))
        {
            return Err(format!(
                "policy `{policy}` asks for {} patterns of injected prompts, there are {have}",
                scan.pattern_count.unwrap_or(0)
            ));
        }
        if scan.action == InjectionAction::Ignore {
            return Ok(());
        }
        self.injection = Some(match self.injection {
            None => InjectionScreening {
                pattern,
                judge,
                action: scan.action,
            },
            Some(known) => InjectionScreening {
                pattern: pattern || known.pattern,
                judge: judge || known.judge,
                action: stricter_injection_action(scan.action, known.action),
            },
        });
        Ok(())
    }
}

const fn stricter_action(a: ScanAction, b: ScanAction) -> ScanAction {
    match (a, b) {
        (ScanAction::Block, _) | (_, ScanAction::Block) => ScanAction::Block,
        (ScanAction::Redact, _) | (_, ScanAction::Redact) => ScanAction::Redact,
        (ScanAction::Warn, ScanAction::Warn) => ScanAction::Warn,
    }
}

const fn stricter_injection_action(a: InjectionAction, b: InjectionAction) -> InjectionAction {
    use InjectionAction::{BlockAndLog, Ignore, LogOnly, Warn};
    match (a, b) {
        (BlockAndLog, _) | (_, BlockAndLog) => BlockAndLog,
        (Warn, _) | (_, Warn) => Warn,
        (LogOnly, _) | (_, LogOnly) => LogOnly,
        (Ignore, Ignore) => Ignore,
    }
}
