//! Formats of well-known keys: the search finds a literal anchor, then an exact check looks at the text around it.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::check::{CharacterSet, has_letters_and_digits, is_key, is_word_start, run};
use super::special;
use super::{Kind, SecretLeak};

/// One kind of key.
pub(super) struct KeyShape {
    /// The format's stable name.
    pub(super) kind: &'static str,
    /// The literal texts to search for.
    anchors: &'static [&'static str],
    check: KeyShapeCheck,
}

enum KeyShapeCheck {
    /// A run of characters directly after the anchor, between boundaries.
    Run(CharacterRun),
    /// A function: gets the text and the anchor's range, and returns the secret's range.
    By(fn(&[u8], usize, usize) -> special::Span),
}

struct CharacterRun {
    set: CharacterSet,
    min: usize,
    max: usize,
    /// The anchor must begin a word. Unmistakable anchors don't need this.
    edge: bool,
    /// The key must have both letters and digits.
    mixed: bool,
}

const fn exact_shape(
    kind: &'static str,
    anchors: &'static [&'static str],
    set: CharacterSet,
    len: usize,
) -> KeyShape {
    ranged_shape(kind, anchors, set, len, len)
}

const fn ranged_shape(
    kind: &'static str,
    anchors: &'static [&'static str],
    set: CharacterSet,
    min: usize,
    max: usize,
) -> KeyShape {
    KeyShape {
        kind,
        anchors,
        check: KeyShapeCheck::Run(CharacterRun {
            set,
            min,
            max,
            edge: true,
            mixed: true,
        }),
    }
}

const fn checked_shape(
    kind: &'static str,
    anchors: &'static [&'static str],
    check: fn(&[u8], usize, usize) -> special::Span,
) -> KeyShape {
    KeyShape {
        kind,
        anchors,
        check: KeyShapeCheck::By(check),
    }
}

/// The longest run that counts as one token, bytes.
const LONG: usize = 400;

/// The longest distance from a key's first byte to the byte that decides whether it is one, bytes. Not for the kinds in [`VAST`].
pub(super) const SHORT: usize = 512;

/// Kinds whose text after the anchor may be long, up to [`MAX_SECRET_BYTES`](super::MAX_SECRET_BYTES).
const VAST: [&str; 4] = ["private-key", "putty-private-key", "jwt", "authorization-header"];

pub(super) static SHAPES: &[KeyShape] = &[
    exact_shape(
        "aws-access-key",
        &["AKIA", "ASIA", "ABIA", "ACCA"],
        CharacterSet::Base32,
        16,
    ),
    checked_shape(
        "aws-secret-key",
        &[
            "aws_secret_access_key",
            "AWS_SECRET_ACCESS_KEY",
            "aws_secret_key",
            "AWS_SECRET_KEY",
            "secretAccessKey",
            "SecretAccessKey",
            "secret_access_key",
        ],
        special::aws_secret,
    ),
    exact_shape("gcp-api-key", &["AIza"], CharacterSet::Url, 35),
    ranged_shape("gcp-oauth-token", &["ya29."], CharacterSet::Url, 40, LONG),
    exact_shape("gcp-client-secret", &["GOCSPX-"], CharacterSet::Url, 28),
    exact_shape(
        "github-token",
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        CharacterSet::Alnum,
        36,
    ),
    ranged_shape(
        "github-fine-grained-token",
        &["github_pat_"],
        CharacterSet::Word,
        60,
        120,
    ),
    ranged_shape(
        "gitlab-token",
        &[
            "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "glsoat-",
            "gloas-",
        ],
        CharacterSet::Dotted,
        20,
        100,
    ),
    ranged_shape(
        "slack-token",
        &[
            "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxo-", "xoxe-", "xoxe.",
        ],
        CharacterSet::Dash,
        24,
        LONG,
    ),
    ranged_shape("slack-app-token", &["xapp-1-"], CharacterSet::Dash, 40, LONG),
    checked_shape(
        "slack-webhook",
        &["hooks.slack.com/services/", "hooks.slack.com/workflows/"],
        special::path_key,
    ),
    ranged_shape(
        "stripe-key",
        &["sk_live_", "rk_live_", "sk_test_", "rk_test_", "sk_org_live_"],
        CharacterSet::Alnum,
        20,
        250,
    ),
    ranged_shape("stripe-webhook-secret", &["whsec_"], CharacterSet::Base64, 32, 80),
    ranged_shape(
        "openai-key",
        &["sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"],
        CharacterSet::Url,
        40,
        LONG,
    ),
    checked_shape("openai-key", &["sk-"], special::openai_classic),
    ranged_shape("anthropic-key", &["sk-ant-"], CharacterSet::Url, 40, LONG),
    exact_shape("openrouter-key", &["sk-or-v1-"], CharacterSet::HexLower, 64),
    ranged_shape("huggingface-token", &["hf_"], CharacterSet::Alnum, 34, 40),
    exact_shape("huggingface-org-token", &["api_org_"], CharacterSet::Alnum, 34),
    exact_shape("npm-token", &["npm_"], CharacterSet::Alnum, 36),
    ranged_shape(
        "pypi-token",
        &["pypi-AgEIcHlwaS5vcmc", "pypi-AgENdGVzdC5weXBpLm9yZw"],
        CharacterSet::Url,
        40,
        LONG,
    ),
    checked_shape("sendgrid-key", &["SG."], special::sendgrid_span),
    exact_shape("twilio-key", &["SK"], CharacterSet::HexLower, 32),
    checked_shape("telegram-bot-token", &[":AA"], special::telegram_span),
    checked_shape(
        "discord-bot-token",
        &["MT", "MD", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"],
        special::discord_span,
    ),
    checked_shape(
        "discord-webhook",
        &["discord.com/api/webhooks/", "discordapp.com/api/webhooks/"],
        special::path_key,
    ),
    checked_shape(
        "private-key",
        &["-----BEGIN ", "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"],
        special::pem_span,
    ),
    checked_shape("putty-private-key", &["Private-Lines: "], special::putty_span),
    checked_shape("jwt", &["eyJ"], special::jwt_span),
    checked_shape(
        "database-url",
        &[
            "postgres://",
            "postgresql://",
            "mysql://",
            "mariadb://",
            "mongodb://",
            "mongodb+srv://",
            "redis://",
            "rediss://",
            "amqp://",
            "amqps://",
            "mssql://",
            "sqlserver://",
            "clickhouse://",
            "cockroachdb://",
            "postgresql+psycopg2://",
            "postgresql+asyncpg://",
            "mysql+pymysql://",
            "nats://",
            "mqtt://",
            "mqtts://",
            "ldap://",
            "ldaps://",
            "smtp://",
            "smtps://",
        ],
        special::url_password,
    ),
    checked_shape(
        "azure-storage-key",
        &["AccountKey=", "SharedAccessKey="],
        special::azure_storage,
    ),
    checked_shape("azure-sas-signature", &["sig="], special::azure_sas),
    checked_shape("azure-client-secret", &["7Q~", "8Q~"], special::azure_client),
    exact_shape(
        "digitalocean-token",
        &["dop_v1_", "doo_v1_", "dor_v1_"],
        CharacterSet::HexLower,
        64,
    ),
    exact_shape("age-secret-key", &["AGE-SECRET-KEY-1"], CharacterSet::Upper, 58),
    exact_shape("mailgun-key", &["key-"], CharacterSet::HexLower, 32),
    checked_shape("mailchimp-key", &["-us"], special::mailchimp_span),
    exact_shape(
        "shopify-token",
        &["shpat_", "shpss_", "shpca_", "shppa_"],
        CharacterSet::HexLower,
        32,
    ),
    ranged_shape("square-token", &["sq0atp-", "sq0csp-"], CharacterSet::Url, 22, 43),
    exact_shape(
        "newrelic-key",
        &["NRAK-", "NRII-", "NRBR-"],
        CharacterSet::Upper,
        27,
    ),
    ranged_shape(
        "grafana-token",
        &["glsa_", "glc_ey"],
        CharacterSet::Word,
        40,
        LONG,
    ),
    ranged_shape(
        "vault-token",
        &["hvs.", "hvb.", "hvr."],
        CharacterSet::Url,
        24,
        LONG,
    ),
    checked_shape("terraform-token", &[".atlasv1."], special::terraform_span),
    exact_shape("linear-key", &["lin_api_", "lin_oauth_"], CharacterSet::Alnum, 40),
    ranged_shape("notion-token", &["ntn_"], CharacterSet::Alnum, 40, 60),
    exact_shape("figma-token", &["figd_", "figo_"], CharacterSet::Url, 40),
    checked_shape("airtable-token", &["pat"], special::airtable_span),
    checked_shape("postman-key", &["PMAK-"], special::postman_span),
    ranged_shape(
        "docker-token",
        &["dckr_pat_", "dckr_oat_"],
        CharacterSet::Url,
        27,
        40,
    ),
    exact_shape("databricks-token", &["dapi"], CharacterSet::HexLower, 32),
    ranged_shape(
        "doppler-token",
        &["dp.pt.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."],
        CharacterSet::Alnum,
        40,
        44,
    ),
    ranged_shape("heroku-key", &["HRKU-"], CharacterSet::Url, 36, 70),
    exact_shape("rubygems-key", &["rubygems_"], CharacterSet::HexLower, 48),
    exact_shape("groq-key", &["gsk_"], CharacterSet::Alnum, 52),
    exact_shape("replicate-token", &["r8_"], CharacterSet::Alnum, 37),
    exact_shape("perplexity-key", &["pplx-"], CharacterSet::Alnum, 48),
    exact_shape("xai-key", &["xai-"], CharacterSet::Alnum, 80),
    ranged_shape(
        "sentry-token",
        &["sntryu_", "sntrys_"],
        CharacterSet::Base64,
        64,
        LONG,
    ),
    exact_shape("cargo-token", &["cio"], CharacterSet::Alnum, 32),
    exact_shape("brevo-key", &["xkeysib-"], CharacterSet::Dash, 81),
    ranged_shape("pulumi-token", &["pul-"], CharacterSet::HexLower, 40, 40),
    ranged_shape(
        "tailscale-key",
        &["tskey-auth-", "tskey-api-", "tskey-client-"],
        CharacterSet::Dash,
        20,
        80,
    ),
    ranged_shape(
        "fly-token",
        &["FlyV1 fm2_", "fm2_lJPE"],
        CharacterSet::Base64,
        60,
        LONG,
    ),
    ranged_shape(
        "supabase-key",
        &["sb_secret_", "sbp_"],
        CharacterSet::Word,
        30,
        60,
    ),
    checked_shape(
        "authorization-header",
        &[
            "authorization:",
            "Authorization:",
            "AUTHORIZATION:",
            "\"authorization\"",
            "\"Authorization\"",
            "'Authorization'",
        ],
        special::authorization_span,
    ),
];

static ANCHORS: LazyLock<(Option<AhoCorasick>, Vec<usize>)> = LazyLock::new(|| {
    let (mut words, mut owners) = (Vec::new(), Vec::new());
    for (at, shape) in SHAPES.iter().enumerate() {
        for anchor in shape.anchors {
            words.push(*anchor);
            owners.push(at);
        }
    }
    let search = AhoCorasick::builder()
        .match_kind(MatchKind::Standard)
        .kind(Some(AhoCorasickKind::DFA))
        .build(words);
    (search.ok(), owners) // silent-ok: constant words; `tests::every_shape_is_found` would fail
});

static VAST_ANCHORS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let shapes = SHAPES.iter().filter(|shape| VAST.contains(&shape.kind));
    let words = shapes.flat_map(|shape| shape.anchors);
    AhoCorasick::new(words).ok() // silent-ok: as above
});

/// Where the first key of a long kind may begin.
pub(super) fn find_long_key(text: &[u8]) -> Option<usize> {
    VAST_ANCHORS.as_ref()?.find(text).map(|hit| hit.start())
}

/// The number of key kinds.
pub(super) fn kind_count() -> usize {
    let mut kinds: Vec<&str> = SHAPES.iter().map(|shape| shape.kind).collect();
    kinds.dedup();
    kinds.len()
}

/// Finds every key in a text.
pub(super) fn find_keys(text: &[u8], found: &mut Vec<SecretLeak>) {
    let (Some(search), owners) = &*ANCHORS else { return };
    for hit in search.find_overlapping_iter(text) {
        let shape = owners
            .get(hit.pattern().as_usize())
            .and_then(|at| SHAPES.get(*at));
        let Some(shape) = shape else { continue };
        let place = match &shape.check {
            KeyShapeCheck::Run(wanted) => wanted.check_run(text, hit.start(), hit.end()),
            KeyShapeCheck::By(check) => check(text, hit.start(), hit.end()),
        };
        if let Some((start, end)) = place {
            found.push(SecretLeak {
                kind: Kind::Shape(shape.kind),
                start,
                end,
            });
        }
    }
}

impl CharacterRun {
    fn check_run(&self, text: &[u8], start: usize, from: usize) -> Option<(usize, usize)> {
        if self.edge && !is_word_start(text, start) {
            return None;
        }
        let end = run(text, from, self.max, self.set);
        let body = text.get(from..end)?;
        // A full stop or dash after a token belongs to the sentence.
        let kept = body.len()
            - body
                .iter()
                .rev()
                .take_while(|byte| matches!(byte, b'.' | b'-'))
                .count();
        let body = body.get(..kept)?;
        let fits =
            (self.min..=self.max).contains(&body.len()) && (!self.mixed || has_letters_and_digits(body));
        // A letter after a token of fixed length: the text is longer, so it is not a token.
        let goes_on = text
            .get(from + kept)
            .is_some_and(|byte| CharacterSet::Word.contains(*byte));
        (fits && !goes_on && is_key(body, self.set)).then_some((start, from + kept))
    }
}
