//! Checks before every model request and every effect that this host still has the lease, by its own clock (R48).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::AgentDependencies;
use clawk_kernel::call::Permit;
use clawk_kernel::place::PathSearch;
use clawk_kernel::ports::{
    AudioRecording, AudioTranscript, BoxFuture, CompletionDelta, FaultKind, InferRequest, InspectedCall,
    MarkedContent, ModelCompletion, ModelProvider, ProviderError, ReconcileMethod, RunError, RunOutcome,
    SpokenAudio, TaintedFiles, TextEmbeddings, ToolDescription, ToolRunner,
};
use clawk_kernel::sheet::ExecutorPreview;
use clawk_kernel::witness::GrantPrecondition;
use clawk_plan::{Plan, SandboxRefusal};
use clawk_policy::path::RealLocations;
use clawk_postgres::FencingToken;
use clawk_server::AgentHost;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::StateDir;

/// Delay before a failed start is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Wraps the dependencies that act with the lease check.
pub(crate) fn guard_dependencies(mut parts: AgentDependencies, state: &StateDir) -> AgentDependencies {
    let StateDir::Postgres(remote) = state else {
        return parts;
    };
    let license = remote.state.fencing_token();
    parts.runner = Arc::new(LeasedToolRunner {
        inner: parts.runner,
        license: license.clone(),
    });
    for provider in parts.providers.values_mut() {
        *provider = Arc::new(LeasedProvider {
            inner: Arc::clone(provider),
            license: license.clone(),
        });
    }
    parts
}

/// Completes when this host must stop because another host has the whole agent. If the server was away for a while, or other hosts
/// have taken over from this one, the agent restarts from the record and its clients stay connected.
pub(crate) async fn wait_while_serving(state: &StateDir, host: &AgentHost) {
    let StateDir::Postgres(remote) = state else {
        return std::future::pending().await;
    };
    let mut outages = remote.state.watch_outages();
    loop {
        let fenced = remote.state.fence_signal();
        let reason = tokio::select! {
            () = fenced.cancelled() => {
                if !remote.state.is_shared() {
                    return;
                }
                "session_moved"
            }
            changed = outages.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                "state_unavailable"
            }
        };
        tracing::warn!(reason, "the agent begins anew on what is recorded");
        while let Err(error) = host.renew_agent(reason).await {
            tracing::error!(%error, "the agent did not start again; it is tried again");
            tokio::time::sleep(AGAIN).await;
            if !remote.state.is_shared() && remote.state.fence_signal().is_cancelled() {
                return;
            }
        }
        if remote.state.fence_signal().is_cancelled() {
            // No agent ran here that could restart. The first start joins the others.
            tokio::time::sleep(AGAIN).await;
        }
    }
}

#[derive(Debug)]
struct LeasedToolRunner {
    inner: Arc<dyn ToolRunner>,
    license: FencingToken,
}

impl ToolRunner for LeasedToolRunner {
    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>> {
        self.inner.describe_tool(tool)
    }

    fn takes_over<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>, RunError>> {
        self.inner.takes_over(tool)
    }

    fn preflight_call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.inner.preflight_call(tool, arguments, plan, workdir)
    }

    fn preflight_later(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        self.inner.preflight_later(tool, arguments, plan, workdir)
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let granted = self.license.wait_until_granted().await;
            granted.map_err(|why| RunError::NotBegun(why.to_string()))?;
            self.inner.run(permit, cancel).await
        })
    }

    fn preview_call<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, ExecutorPreview> {
        self.inner.preview_call(look)
    }

    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>> {
        self.inner.stands_on(look)
    }

    fn was_asked(&self, look: InspectedCall<'_>) -> Option<bool> {
        self.inner.was_asked(look)
    }

    fn locate_paths<'a>(
        &'a self,
        look: InspectedCall<'a>,
        search: PathSearch,
    ) -> BoxFuture<'a, RealLocations> {
        self.inner.locate_paths(look, search)
    }

    fn marked_origins<'a>(&'a self, contents: Vec<MarkedContent>) -> BoxFuture<'a, TaintedFiles> {
        self.inner.marked_origins(contents)
    }

    fn mark_content<'a>(
        &'a self,
        content: Vec<u8>,
        origins: BTreeSet<String>,
    ) -> BoxFuture<'a, Result<(), String>> {
        self.inner.mark_content(content, origins)
    }

    fn reconcile_method(&self, tool: &str) -> ReconcileMethod {
        self.inner.reconcile_method(tool)
    }

    fn run_check<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let granted = self.license.wait_until_granted().await;
            granted.map_err(|why| RunError::NotBegun(why.to_string()))?;
            self.inner.run_check(permit, cancel).await
        })
    }

    fn is_kernels(&self, tool: &str) -> bool {
        self.inner.is_kernels(tool)
    }

    fn set_sampling_handler(&self, sampler: clawk_kernel::ports::SamplingHandler) {
        self.inner.set_sampling_handler(sampler);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

#[derive(Debug)]
struct LeasedProvider {
    inner: Arc<dyn ModelProvider>,
    license: FencingToken,
}

impl LeasedProvider {
    async fn check_lease(&self) -> Result<(), ProviderError> {
        self.license
            .wait_until_granted()
            .await
            .map_err(|why| ProviderError {
                kind: FaultKind::Cancelled,
                message: format!("nothing was asked: {why}"),
                status: None,
                retry_after_ms: None,
                usage: None,
                cause: None,
            })
    }
}

impl ModelProvider for LeasedProvider {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(async move {
            self.check_lease().await?;
            self.inner.infer(request, on_delta, cancel).await
        })
    }

    fn embed_texts<'a>(
        &'a self,
        model: &'a str,
        dimensions: Option<u64>,
        texts: &'a [String],
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<TextEmbeddings, ProviderError>> {
        Box::pin(async move {
            self.check_lease().await?;
            self.inner.embed_texts(model, dimensions, texts, cancel).await
        })
    }

    fn transcribe_audio<'a>(
        &'a self,
        audio: &'a AudioRecording,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<AudioTranscript, ProviderError>> {
        Box::pin(async move {
            self.check_lease().await?;
            self.inner.transcribe_audio(audio, cancel).await
        })
    }

    fn synthesize_speech<'a>(
        &'a self,
        voice: &'a str,
        text: &'a str,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<SpokenAudio, ProviderError>> {
        Box::pin(async move {
            self.check_lease().await?;
            self.inner.synthesize_speech(voice, text, cancel).await
        })
    }

    fn window_tokens(&self) -> BoxFuture<'_, Option<u64>> {
        self.inner.window_tokens()
    }

    fn check_reachable(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        self.inner.check_reachable()
    }
}
