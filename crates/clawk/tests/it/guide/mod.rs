//! The guide, tried: every command and every file that the README and `docs/` show is used as written, with the scripted model.
//!
//! [`page`] reads a page, [`play`] plays it. What a block needs and the reader does not see stands in a comment before it:
//!
//! * `<!-- file: PATH -->`: the block is written to this file.
//! * `<!-- setup: COMMAND -->`: a command that is run here, for example to wait for a server.
//! * `<!-- not run: WHY -->`: the block is only read; it needs something that CI lacks.

mod fragment;
mod named;
mod page;
mod play;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                play::page($page);
            }
        )*
    };
}

pages! {
    the_readme_works_as_written: "README.md",
    the_tutorial_works_word_by_word: "docs/tutorial.md",
    job_invoices_by_mail_works_as_written: "docs/jobs/invoices-by-mail.md",
    job_docs_folder_works_as_written: "docs/jobs/docs-folder.md",
    job_two_mcp_servers_works_as_written: "docs/jobs/two-mcp-servers.md",
    job_skill_works_as_written: "docs/jobs/skill.md",
    job_memory_works_as_written: "docs/jobs/memory.md",
    job_two_agents_works_as_written: "docs/jobs/two-agents.md",
    job_two_commands_works_as_written: "docs/jobs/two-commands.md",
    job_two_hosts_works_as_written: "docs/jobs/two-hosts.md",
    operating_works_as_written: "docs/operating.md",
    security_works_as_written: "docs/security.md",
    how_to_swarms_works_as_written: "docs/how-to/swarms.md",
    how_to_transports_works_as_written: "docs/how-to/transports.md",
    how_to_channels_works_as_written: "docs/how-to/channels.md",
    how_to_first_chat_works_as_written: "docs/how-to/first-chat.md",
    how_to_telegram_works_as_written: "docs/how-to/telegram.md",
    how_to_slack_works_as_written: "docs/how-to/slack.md",
    how_to_discord_works_as_written: "docs/how-to/discord.md",
    how_to_matrix_works_as_written: "docs/how-to/matrix.md",
    how_to_line_works_as_written: "docs/how-to/line.md",
    how_to_webhook_works_as_written: "docs/how-to/webhook.md",
    how_to_cron_works_as_written: "docs/how-to/cron.md",
    how_to_activity_log_works_as_written: "docs/how-to/activity-log.md",
    how_to_telemetry_works_as_written: "docs/how-to/telemetry.md",
    how_to_memory_works_as_written: "docs/how-to/memory.md",
    how_to_postgres_state_works_as_written: "docs/how-to/postgres-state.md",
    how_to_mail_works_as_written: "docs/how-to/channel-mail.md",
    how_to_web_works_as_written: "docs/how-to/channel-web.md",
    how_to_voice_works_as_written: "docs/how-to/voice.md",
    how_to_queue_works_as_written: "docs/how-to/channel-queue.md",
    how_to_whatsapp_works_as_written: "docs/how-to/whatsapp.md",
    how_to_lark_works_as_written: "docs/how-to/lark.md",
    how_to_dingtalk_works_as_written: "docs/how-to/dingtalk.md",
    how_to_wechat_works_as_written: "docs/how-to/wechat.md",
    how_to_qq_works_as_written: "docs/how-to/qq.md",
    how_to_write_a_channel_works_as_written: "docs/how-to/write-a-channel.md",
    how_to_clients_works_as_written: "docs/how-to/clients.md",
    how_to_providers_works_as_written: "docs/how-to/providers.md",
    how_to_policies_works_as_written: "docs/how-to/policies.md",
    how_to_questions_works_as_written: "docs/how-to/questions.md",
    how_to_sandbox_levels_works_as_written: "docs/how-to/sandbox-levels.md",
    how_to_network_works_as_written: "docs/how-to/network-and-secrets.md",
    how_to_mcp_works_as_written: "docs/how-to/mcp.md",
    how_to_tools_works_as_written: "docs/how-to/tools.md",
    how_to_budgets_works_as_written: "docs/how-to/budgets.md",
    how_to_effects_works_as_written: "docs/how-to/effects.md",
    how_to_messages_works_as_written: "docs/how-to/messages.md",
    how_to_plans_works_as_written: "docs/how-to/plans.md",
    how_to_skills_works_as_written: "docs/how-to/skills.md",
    how_to_long_tasks_works_as_written: "docs/how-to/long-tasks.md",
    how_to_world_models_works_as_written: "docs/how-to/world-models.md",
    how_to_dry_run_and_undo_works_as_written: "docs/how-to/dry-run-and-undo.md",
    how_to_atlases_works_as_written: "docs/how-to/atlases.md",
    how_to_replay_works_as_written: "docs/how-to/replay.md",
    how_to_exports_works_as_written: "docs/how-to/exports.md",
    how_to_real_parts_works_as_written: "docs/how-to/real-parts.md",
    reference_config_works_as_written: "docs/reference/config.md",
    reference_tools_works_as_written: "docs/reference/tools.md",
    reference_doors_works_as_written: "docs/reference/doors.md",
    reference_http_api_works_as_written: "docs/reference/http-api.md",
    reference_sandbox_works_as_written: "docs/reference/sandbox.md",
    reference_scripted_model_works_as_written: "docs/reference/scripted-model.md",
    reference_manifest_works_as_written: "docs/reference/manifest.md",
    reference_benchmarks_works_as_written: "docs/reference/benchmarks.md",
    reference_warm_boxes_works_as_written: "docs/reference/warm-boxes.md",
    reference_doctor_works_as_written: "docs/reference/doctor.md",
    the_trace_format_works_as_written: "docs/trace-format.md",
}

/// A page with a block and without a test above would never be tried.
#[test]
fn every_page_with_a_block_is_tried() {
    let root = root();
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
    let listed = summary
        .split("](")
        .skip(1)
        .map(|rest| format!("docs/{}", rest.split(')').next().unwrap()));
    for name in listed {
        let text = std::fs::read_to_string(root.join(&name)).unwrap();
        // Records of decisions say what was; the page of the command line is compared with the program.
        let tried = PAGES.contains(&name.as_str())
            || name.starts_with("docs/adr/")
            || name == "docs/reference/cli.md"
            || page::steps(&name, &text).is_empty();
        assert!(tried, "{name} shows commands or files and has no test in guide");
    }
}
