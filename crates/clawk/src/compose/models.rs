//! Applies the catalogue of models to a manifest's providers.

use std::collections::BTreeMap;

use clawk_kernel::time::Timestamp;
use clawk_kernel::{ModelDialect, ModelOptions};
use clawk_manifest::model::{Manifest, Provider, ProviderProtocol};

use crate::config::Settings;

/// The host for which the catalogue's note about the Responses API holds. Gateways differ.
const RESPONSES_HOST: &str = "https://api.openai.com/";

/// Replaces names like `openai:small` by models.
pub(super) fn resolve_aliases(manifest: &mut Manifest, settings: &Settings) {
    for provider in &mut manifest.providers {
        let model = settings
            .prices
            .catalogue
            .resolve_alias(&provider.model)
            .to_owned();
        provider.model = model;
    }
}

/// Returns the request options of each provider.
pub(super) fn provider_options(manifest: &Manifest, settings: &Settings) -> BTreeMap<String, ModelOptions> {
    let providers = manifest.providers.iter();
    providers
        .map(|provider| (provider.name.clone(), options_for(provider, settings)))
        .collect()
}

fn options_for(provider: &Provider, settings: &Settings) -> ModelOptions {
    let own = settings
        .providers
        .get(&provider.name)
        .cloned()
        .unwrap_or_default();
    let mut options = own.model_options();
    if let Some(facts) = settings.prices.catalogue.find_facts(&provider.model) {
        options.catalogue_tokens = facts.window_tokens;
        options.efforts.clone_from(&facts.efforts);
        let own_host = provider.endpoint.starts_with(RESPONSES_HOST);
        let chat = provider.protocol == ProviderProtocol::OpenaiCompatible;
        options.adaptation.responses_api |=
            own_host && chat && facts.dialect == Some(ModelDialect::Responses);
    }
    options
}

/// Returns faults for effort settings that the model does not support.
pub(super) fn effort_faults(manifest: &Manifest, settings: &Settings) -> Vec<String> {
    let providers = manifest.providers.iter();
    let faults = providers.filter_map(|provider| {
        let effort = settings.providers.get(&provider.name)?.effort?;
        let fault = settings.prices.catalogue.effort_fault(&provider.model, effort)?;
        Some(format!(
            "provider `{0}`: `[providers.{0}] effort`: {fault}",
            provider.name
        ))
    });
    faults.collect()
}

/// Returns warnings for models that their vendors have shut down or will soon.
pub(super) fn shutdown_warnings(manifest: &Manifest, settings: &Settings, now: Timestamp) -> Vec<String> {
    let providers = manifest.providers.iter();
    let warnings = providers.filter_map(|provider| {
        let warning = settings.prices.catalogue.shutdown_warning(&provider.model, now)?;
        Some(format!("provider `{}`: {warning}", provider.name))
    });
    warnings.collect()
}
