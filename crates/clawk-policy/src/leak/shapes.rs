//! Formats of well-known keys: the search finds a literal anchor, then an exact check looks at the text around it.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::check::{CharacterSet, is_key, mixed, run, starts};
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

const fn exact(
    kind: &'static str,
    anchors: &'static [&'static str],
    set: CharacterSet,
    len: usize,
) -> KeyShape {
    between(kind, anchors, set, len, len)
}

const fn between(
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

const fn by(
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
    exact(
        "aws-access-key",
        &["AKIA", "ASIA", "ABIA", "ACCA"],
        CharacterSet::Base32,
        16,
    ),
    by(
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
    exact("gcp-api-key", &["AIza"], CharacterSet::Url, 35),
    between("gcp-oauth-token", &["ya29."], CharacterSet::Url, 40, LONG),
    exact("gcp-client-secret", &["GOCSPX-"], CharacterSet::Url, 28),
    exact(
        "github-token",
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        CharacterSet::Alnum,
        36,
    ),
    between(
        "github-fine-grained-token",
        &["github_pat_"],
        CharacterSet::Word,
        60,
        120,
    ),
    between(
        "gitlab-token",
        &[
            "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "glsoat-",
            "gloas-",
        ],
        CharacterSet::Dotted,
        20,
        100,
    ),
    between(
        "slack-token",
        &[
            "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxo-", "xoxe-", "xoxe.",
        ],
        CharacterSet::Dash,
        24,
        LONG,
    ),
    between("slack-app-token", &["xapp-1-"], CharacterSet::Dash, 40, LONG),
    by(
        "slack-webhook",
        &["hooks.slack.com/services/", "hooks.slack.com/workflows/"],
        special::path_key,
    ),
    between(
        "stripe-key",
        &["sk_live_", "rk_live_", "sk_test_", "rk_test_", "sk_org_live_"],
        CharacterSet::Alnum,
        20,
        250,
    ),
    between("stripe-webhook-secret", &["whsec_"], CharacterSet::Base64, 32, 80),
    between(
        "openai-key",
        &["sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"],
        CharacterSet::Url,
        40,
        LONG,
    ),
    by("openai-key", &["sk-"], special::openai_classic),
    between("anthropic-key", &["sk-ant-"], CharacterSet::Url, 40, LONG),
    exact("openrouter-key", &["sk-or-v1-"], CharacterSet::HexLower, 64),
    between("huggingface-token", &["hf_"], CharacterSet::Alnum, 34, 40),
    exact("huggingface-org-token", &["api_org_"], CharacterSet::Alnum, 34),
    exact("npm-token", &["npm_"], CharacterSet::Alnum, 36),
    between(
        "pypi-token",
        &["pypi-AgEIcHlwaS5vcmc", "pypi-AgENdGVzdC5weXBpLm9yZw"],
        CharacterSet::Url,
        40,
        LONG,
    ),
    by("sendgrid-key", &["SG."], special::sendgrid),
    exact("twilio-key", &["SK"], CharacterSet::HexLower, 32),
    by("telegram-bot-token", &[":AA"], special::telegram),
    by(
        "discord-bot-token",
        &["MT", "MD", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"],
        special::discord,
    ),
    by(
        "discord-webhook",
        &["discord.com/api/webhooks/", "discordapp.com/api/webhooks/"],
        special::path_key,
    ),
    by(
        "private-key",
        &["-----BEGIN ", "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"],
        special::pem,
    ),
    by("putty-private-key", &["Private-Lines: "], special::putty),
    by("jwt", &["eyJ"], special::jwt),
    by(
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
    by(
        "azure-storage-key",
        &["AccountKey=", "SharedAccessKey="],
        special::azure_storage,
    ),
    by("azure-sas-signature", &["sig="], special::azure_sas),
    by("azure-client-secret", &["7Q~", "8Q~"], special::azure_client),
    exact(
        "digitalocean-token",
        &["dop_v1_", "doo_v1_", "dor_v1_"],
        CharacterSet::HexLower,
        64,
    ),
    exact("age-secret-key", &["AGE-SECRET-KEY-1"], CharacterSet::Upper, 58),
    exact("mailgun-key", &["key-"], CharacterSet::HexLower, 32),
    by("mailchimp-key", &["-us"], special::mailchimp),
    exact(
        "shopify-token",
        &["shpat_", "shpss_", "shpca_", "shppa_"],
        CharacterSet::HexLower,
        32,
    ),
    between("square-token", &["sq0atp-", "sq0csp-"], CharacterSet::Url, 22, 43),
    exact(
        "newrelic-key",
        &["NRAK-", "NRII-", "NRBR-"],
        CharacterSet::Upper,
        27,
    ),
    between(
        "grafana-token",
        &["glsa_", "glc_ey"],
        CharacterSet::Word,
        40,
        LONG,
    ),
    between(
        "vault-token",
        &["hvs.", "hvb.", "hvr."],
        CharacterSet::Url,
        24,
        LONG,
    ),
    by("terraform-token", &[".atlasv1."], special::terraform),
    exact("linear-key", &["lin_api_", "lin_oauth_"], CharacterSet::Alnum, 40),
    between("notion-token", &["ntn_"], CharacterSet::Alnum, 40, 60),
    exact("figma-token", &["figd_", "figo_"], CharacterSet::Url, 40),
    by("airtable-token", &["pat"], special::airtable),
    by("postman-key", &["PMAK-"], special::postman),
    between(
        "docker-token",
        &["dckr_pat_", "dckr_oat_"],
        CharacterSet::Url,
        27,
        40,
    ),
    exact("databricks-token", &["dapi"], CharacterSet::HexLower, 32),
    between(
        "doppler-token",
        &["dp.pt.", "dp.ct.", "dp.sa.", "dp.scim.", "dp.audit."],
        CharacterSet::Alnum,
        40,
        44,
    ),
    between("heroku-key", &["HRKU-"], CharacterSet::Url, 36, 70),
    exact("rubygems-key", &["rubygems_"], CharacterSet::HexLower, 48),
    exact("groq-key", &["gsk_"], CharacterSet::Alnum, 52),
    exact("replicate-token", &["r8_"], CharacterSet::Alnum, 37),
    exact("perplexity-key", &["pplx-"], CharacterSet::Alnum, 48),
    exact("xai-key", &["xai-"], CharacterSet::Alnum, 80),
    between(
        "sentry-token",
        &["sntryu_", "sntrys_"],
        CharacterSet::Base64,
        64,
        LONG,
    ),
    exact("cargo-token", &["cio"], CharacterSet::Alnum, 32),
    exact("brevo-key", &["xkeysib-"], CharacterSet::Dash, 81),
    between("pulumi-token", &["pul-"], CharacterSet::HexLower, 40, 40),
    between(
        "tailscale-key",
        &["tskey-auth-", "tskey-api-", "tskey-client-"],
        CharacterSet::Dash,
        20,
        80,
    ),
    between(
        "fly-token",
        &["FlyV1 fm2_", "fm2_lJPE"],
        CharacterSet::Base64,
        60,
        LONG,
    ),
    between(
        "supabase-key",
        &["sb_secret_", "sbp_"],
        CharacterSet::Word,
        30,
        60,
    ),
    by(
        "authorization-header",
        &[
            "authorization:",
            "Authorization:",
            "AUTHORIZATION:",
            "\"authorization\"",
            "\"Authorization\"",
            "'Authorization'",
        ],
        special::authorization,
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
pub(super) fn vast(text: &[u8]) -> Option<usize> {
    VAST_ANCHORS.as_ref()?.find(text).map(|hit| hit.start())
}

/// The number of key kinds.
pub(super) fn count() -> usize {
    let mut kinds: Vec<&str> = SHAPES.iter().map(|shape| shape.kind).collect();
    kinds.dedup();
    kinds.len()
}

/// Finds every key in a text.
pub(super) fn find(text: &[u8], found: &mut Vec<SecretLeak>) {
    let (Some(search), owners) = &*ANCHORS else { return };
    for hit in search.find_overlapping_iter(text) {
        let shape = owners
            .get(hit.pattern().as_usize())
            .and_then(|at| SHAPES.get(*at));
        let Some(shape) = shape else { continue };
        let place = match &shape.check {
            KeyShapeCheck::Run(wanted) => wanted.check(text, hit.start(), hit.end()),
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
    fn check(&self, text: &[u8], start: usize, from: usize) -> Option<(usize, usize)> {
        if self.edge && !starts(text, start) {
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
        let fits = (self.min..=self.max).contains(&body.len()) && (!self.mixed || mixed(body));
        // A letter after a token of fixed length: the text is longer, so it is not a token.
        let goes_on = text
            .get(from + kept)
            .is_some_and(|byte| CharacterSet::Word.has(*byte));
        (fits && !goes_on && is_key(body, self.set)).then_some((start, from + kept))
    }
}
