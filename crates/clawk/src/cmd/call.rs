//! `clawk call`: calls any CKP method of an agent, over any transport.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clawk_client::{AgentAddress, AgentClient, ClientError, Options};
use clawk_secrets::Secret;
use serde_json::{Value, json};

use crate::{compose, out};

/// Flags of `clawk call`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  clawk call http://127.0.0.1:8420 claw.status
  clawk call ws://127.0.0.1:8420 claw.tool.call '{\"name\": \"echo\", \"arguments\": {\"text\": \"hi\"}}'
  clawk call https://agents.example claw.memory.query '{...}' --token-env CLAW_TOKEN
  clawk call unix:$STATE/control.sock claw.swarm.discover
  clawk call dir:/srv/box claw.status
  clawk call nats://127.0.0.1:4222#my-agent claw.status
  clawk call 'exec:clawk serve claw.yaml --stdio' claw.status

A request id is made where the method wants one and PARAMS have none. The result is printed as JSON; an error of the
agent, too, on standard error, with exit code 1.")]
pub(crate) struct Args {
    /// Where the agent is: http, https, ws, wss, unix, dir, nats, redis or exec
    #[arg(value_name = "URL")]
    target: String,

    /// For example `claw.status`
    #[arg(value_name = "METHOD")]
    method: String,

    /// A JSON object
    #[arg(value_name = "PARAMS", default_value = "{}")]
    params: String,

    /// The variable that holds the token
    #[arg(long, value_name = "NAME")]
    token_env: Option<String>,

    /// Seconds to wait for the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    /// Print the agent's notifications on standard error while the call runs
    #[arg(long)]
    notices: bool,
}

/// Reads the token from an environment variable.
///
/// # Errors
/// The variable is not set.
pub(crate) fn read_token(variable: Option<&str>) -> Result<Option<Secret>> {
    let Some(name) = variable else { return Ok(None) };
    let value = clawk_secrets::env::non_empty(name).with_context(|| format!("`{name}` is not set"))?;
    Ok(Some(Secret::new(name, value)))
}

/// Sends the request and prints the result.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let target = AgentAddress::parse(&args.target)?;
    let params: Value = serde_json::from_str(&args.params).context("PARAMS are not JSON")?;
    let options = Options {
        token: read_token(args.token_env.as_deref())?,
        patience: Duration::from_secs(args.timeout),
        ..Options::for_client("clawk call")
    };
    compose::build_runtime()?.block_on(call(args, target, options, params))
}

async fn call(args: &Args, target: AgentAddress, options: Options, params: Value) -> Result<ExitCode> {
    let client = AgentClient::connect(target, options).await?;
    let mut notices = client.subscribe_notices();
    let params = client.complete_params(&args.method, params);
    let outcome = {
        let calling = client.call(&args.method, params);
        tokio::pin!(calling);
        loop {
            tokio::select! {
                biased;
                Ok(notice) = notices.recv(), if args.notices => {
                    let told = json!({"method": notice.method, "params": notice.params});
                    out::print_note(out::one_line(&told.to_string()));
                }
                outcome = &mut calling => break outcome,
            }
        }
    };
    client.close().await;
    match outcome {
        Ok(result) => {
            out::print_json(&result)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ClientError::Rpc(error)) => {
            out::print_note(out::one_line(&serde_json::to_string(&json!({"error": error}))?));
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}
