use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};

use super::*;

const CANARY: &str = "sk-canary/7f3+\"Zz\\ é!";

fn config(toml: &str) -> StoreConfig {
    toml::from_str(toml).unwrap()
}

fn resolver(toml: &str, base: &Path, env: EnvironmentSource) -> SecretResolver {
    SecretResolver::new(&config(toml), base, env).unwrap()
}

fn no_env() -> EnvironmentSource {
    EnvironmentSource::from_pairs([("PATH", "/bin")])
}

#[test]
fn places_are_asked_in_the_profiles_order() {
    let dir = tempfile::tempdir().unwrap();
    let secrets = dir.path().join("secrets");
    fs::create_dir(&secrets).unwrap();
    for name in ["A", "B", "C"] {
        fs::write(secrets.join(name), format!("dir-{name}\n")).unwrap();
    }
    let table = dir.path().join("s.toml");
    fs::write(&table, "A = 'store-A'").unwrap();
    fs::set_permissions(&table, fs::Permissions::from_mode(0o600)).unwrap();
    let env = EnvironmentSource::from_pairs([
        ("A", "env-A"),
        ("B", "env-B"),
        ("CLAW_SECRETS_DIR", secrets.to_str().unwrap()),
    ]);
    let found = resolver("file = 's.toml'", dir.path(), env);
    assert_eq!(found.resolve("A").unwrap().expose(), "store-A");
    assert_eq!(found.resolve("B").unwrap().expose(), "env-B");
    assert_eq!(found.resolve("C").unwrap().expose(), "dir-C");
}

#[test]
fn a_missing_secret_names_itself_and_every_place() {
    let missing = SecretResolver::without_store(EnvironmentSource::from_pairs([("KEY", "")]))
        .resolve("KEY")
        .unwrap_err()
        .to_string();
    assert_eq!(
        missing,
        "secret `KEY` not found: looked in environment variable `KEY` (empty); \
         file `$CLAW_SECRETS_DIR/KEY` (CLAW_SECRETS_DIR is not set)"
    );
}

#[test]
fn references_do_not_leave_the_secrets_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::write(dir.path().join("out"), "outside").unwrap();
    let env = EnvironmentSource::from_pairs([("CLAW_SECRETS_DIR", dir.path().join("in").to_str().unwrap())]);
    for name in [
        "../out",
        "..",
        ".",
        "a/../../out",
        "/etc/hostname",
        "..\\out",
        "x\0y",
        "",
        "-rf",
        "a\nb",
    ] {
        assert!(
            SecretResolver::without_store(env.clone()).resolve(name).is_err(),
            "{name:?}"
        );
    }
}

#[test]
fn what_stands_around_a_value_goes_in_a_file_and_in_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let env = EnvironmentSource::from_pairs([("CLAW_SECRETS_DIR", dir.path().to_str().unwrap())]);
    for (written, read) in [
        ("v", "v"),
        ("v\n", "v"),
        ("v\r\n", "v"),
        ("v\n\n", "v"),
        ("v\r", "v"),
        (" v ", "v"),
        ("\tv\t", "v"),
        ("\u{feff}v\n", "v"),
        ("\u{a0}v\u{2028}", "v"),
        ("a b\nc\n", "a b\nc"),
        ("\"v\"", "\"v\""),
    ] {
        fs::write(dir.path().join("K"), written).unwrap();
        let by_environment = EnvironmentSource::from_pairs([("K", written)]);
        let resolved = SecretResolver::without_store(by_environment)
            .resolve("K")
            .unwrap();
        assert_eq!(resolved.expose(), read, "environment: {written:?}");
        assert_eq!(
            SecretResolver::without_store(env.clone())
                .resolve("K")
                .unwrap()
                .expose(),
            read
        );
    }
    fs::write(dir.path().join("K"), [0xff, 0xfe]).unwrap();
    assert!(matches!(
        SecretResolver::without_store(env).resolve("K"),
        Err(ResolveError::Store { .. })
    ));
}

#[test]
fn blanks_alone_are_no_value() {
    for value in ["", " ", "\n", "\r\n\t"] {
        let resolved =
            SecretResolver::without_store(EnvironmentSource::from_pairs([("K", value)])).resolve("K");
        assert!(
            matches!(resolved, Err(ResolveError::NotFound { .. })),
            "{value:?}"
        );
    }
}

#[test]
fn a_key_in_the_place_of_its_name_is_refused_and_not_repeated() {
    let error = SecretResolver::without_store(EnvironmentSource::from_pairs([("x", "y")]))
        .resolve("sk-proj-0123456789abcdef")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the secret itself") && !error.contains("0123"),
        "{error}"
    );
}

#[test]
fn a_store_file_others_may_touch_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("s.toml");
    fs::write(&table, "K = 'v'").unwrap();
    for (mode, fine) in [
        (0o600, true),
        (0o400, true),
        (0o640, false),
        (0o604, false),
        (0o620, false),
        (0o602, false),
    ] {
        fs::set_permissions(&table, fs::Permissions::from_mode(mode)).unwrap();
        // Not even when the environment knows the name: a broken store is not a reason to go on.
        let answer = resolver(
            "file = 's.toml'",
            dir.path(),
            EnvironmentSource::from_pairs([("K", "env")]),
        )
        .resolve("K");
        assert_eq!(answer.is_ok(), fine, "{mode:o}");
    }
    fs::set_permissions(&table, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&table, format!("K = \"{}", "canary-value")).unwrap();
    let broken = resolver("file = 's.toml'", dir.path(), no_env())
        .resolve("K")
        .unwrap_err();
    assert!(!format!("{broken} {broken:?}").contains("canary-value"));
}

#[test]
fn a_store_command_gets_the_name_as_one_argument() {
    let dir = tempfile::tempdir().unwrap();
    let found = resolver(
        "command = ['printf', '%s\\n', 'value of {name}']",
        dir.path(),
        no_env(),
    );
    assert_eq!(
        found.resolve("a b;$(id)/c").unwrap().expose(),
        "value of a b;$(id)/c"
    );
}

#[test]
fn a_store_command_that_fails_is_passed_over_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let env = EnvironmentSource::from_pairs([("B", "env-B")]);
    let found = resolver(
        "command = ['sh', '-c', 'echo canary-out; echo canary-err >&2; exit 3']",
        dir.path(),
        env,
    );
    assert_eq!(found.resolve("B").unwrap().expose(), "env-B");
    let missing = found.resolve("C").unwrap_err().to_string();
    assert!(
        missing.contains("exit status: 3") && !missing.contains("canary"),
        "{missing}"
    );
}

#[test]
fn a_store_command_is_bounded_in_time_and_size() {
    let dir = tempfile::tempdir().unwrap();
    let started = Instant::now();
    // A grandchild holds the pipe: the whole group must go.
    let slow = resolver(
        "command = ['sh', '-c', 'sleep 30 & sleep 30']\ndeadline_ms = 150",
        dir.path(),
        no_env(),
    );
    assert!(matches!(
        slow.resolve("K"),
        Err(ResolveError::Store {
            source: StoreError::Deadline { .. },
            ..
        })
    ));
    let flood = resolver(
        "command = ['sh', '-c', 'yes']\nmax_bytes = 1000",
        dir.path(),
        no_env(),
    );
    assert!(matches!(
        flood.resolve("K"),
        Err(ResolveError::Store {
            source: StoreError::TooLarge { .. },
            ..
        })
    ));
    let absent = resolver(
        "command = ['/no/such/program']",
        dir.path(),
        EnvironmentSource::from_pairs([("K", "v")]),
    );
    assert!(matches!(
        absent.resolve("K"),
        Err(ResolveError::Store {
            source: StoreError::Command { .. },
            ..
        })
    ));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_contradictory_configuration_is_refused() {
    for toml in [
        "command = ['a']\nfile = 'b'",
        "command = []",
        "command = ['{name}']",
        "deadline_ms = 0",
    ] {
        assert!(
            SecretResolver::new(&config(toml), Path::new("."), no_env()).is_err(),
            "{toml}"
        );
    }
    assert!(toml::from_str::<StoreConfig>("comand = ['a']").is_err());
}

#[test]
fn nothing_prints_a_value() {
    let env = EnvironmentSource::from_pairs([("K", CANARY)]);
    let resolver = SecretResolver::without_store(env.clone());
    let secret = resolver.resolve("K").unwrap();
    let shown = format!("{secret:?} {resolver:?} {env:?} {:?}", resolver.redactor());
    assert!(!shown.contains("canary"), "{shown}");
    assert!(shown.contains("Secret(K)"));
}

#[test]
fn every_usual_spelling_is_redacted() {
    let resolver = SecretResolver::without_store(EnvironmentSource::from_pairs([("K", CANARY)]));
    resolver.resolve("K").unwrap();
    let redactor = resolver.redactor();
    let mut spellings = vec![
        CANARY.to_owned(),
        serde_json::to_string(CANARY).unwrap(),
        "sk-canary%2F7f3%2B%22Zz%5C%20%C3%A9%21".to_owned(),
        "sk-canary%2f7f3%2b%22Zz%5c%20%c3%a9%21".to_owned(),
        "sk-canary%2F7f3%2B%22Zz%5C+%C3%A9%21".to_owned(),
    ];
    for lead in ["", "u", "us", "user:"] {
        spellings.push(STANDARD.encode(format!("{lead}{CANARY}tail")));
        spellings.push(URL_SAFE.encode(format!("{lead}{CANARY}")));
    }
    for spelling in spellings {
        let cleaned = redactor.redact_text(&format!("before {spelling} after"));
        assert!(cleaned.contains("[secret K]"), "{cleaned}");
        assert!(
            !cleaned.contains("canary") && !cleaned.contains("Y2FuYXJ5"),
            "{cleaned}"
        );
    }
    assert_eq!(redactor.redact_text("nothing here"), "nothing here");
}

#[test]
fn overlapping_secrets_leave_no_tail() {
    let (short, long) = (
        Secret::new("SHORT", "abcdef"),
        Secret::new("LONG", "abcdef-ghijkl"),
    );
    let redactor = SecretRedactor::new([&short, &long]);
    assert_eq!(
        redactor.redact_text("abcdef-ghijkl abcdef SHORT"),
        "[secret LONG] [secret SHORT] SHORT"
    );
}

#[test]
fn many_tokens_do_not_push_the_key_out() {
    let resolver = SecretResolver::without_store(EnvironmentSource::from_pairs([("K", CANARY)]));
    resolver.resolve("K").unwrap();
    for n in 0..100 {
        resolver.add_derived_secret(&Secret::new("K (token)", format!("token-number-{n:03}")));
    }
    let cleaned = resolver.redactor().redact_text(&format!(
        "{CANARY} token-number-099 token-number-096 token-number-001"
    ));
    assert_eq!(
        cleaned,
        "[secret K] [secret K (token)] [secret K (token)] token-number-001"
    );
}

#[test]
fn a_secret_cut_anywhere_is_found_in_a_stream() {
    let secret = Secret::new("KEY", "s3cr3t/va lue+9");
    let redactor = SecretRedactor::new([&secret]);
    let base64 = "a8Pp".to_owned() + "czNjcjN0L3ZhIGx1ZSs5" + "zz";
    for text in [
        "before s3cr3t/va lue+9 after",
        "s3cr3t%2Fva%20lue%2B9 and s3cr3t/va lue+9s3cr3t/va lue+9",
        "hex 7333637233742f7661206c75652b39.",
        base64.as_str(),
        "s3cr3t/va lue+",
    ] {
        let whole = redactor.redact_text(text);
        for size in 1..=text.len() {
            let (mut stream, mut out) = (redactor.redact_stream(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                stream.push(piece, &mut out);
            }
            stream.finish(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), whole, "in pieces of {size}");
        }
    }
    // Nothing is kept back without need: an event stream must not lag behind.
    let (mut stream, mut out) = (redactor.redact_stream(), Vec::new());
    stream.push(b"data: hello\n\n", &mut out);
    assert_eq!(out, b"data: hello\n\n");
}

#[test]
fn a_kept_secret_is_private_found_last_and_refused_when_others_can_read_it() {
    let home = tempfile::tempdir().unwrap();
    let home_path = home.path().to_str().unwrap();
    let env = EnvironmentSource::from_pairs([("HOME", home_path)]);
    assert!(SecretResolver::without_store(env.clone()).resolve("KEY").is_err());
    for value in ["first", "second"] {
        let file = keep_secret(&env, &Secret::new("KEY", value)).unwrap();
        assert_eq!(file, home.path().join(".config/clawk/secrets/KEY"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        let found = SecretResolver::without_store(env.clone()).resolve("KEY").unwrap();
        assert_eq!(found.expose(), value);
    }
    let folder = kept_secrets_dir(&env).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no draft stays");
    let given = EnvironmentSource::from_pairs([("HOME", home_path), ("KEY", "of the environment")]);
    let found = SecretResolver::without_store(given).resolve("KEY").unwrap();
    assert_eq!(found.expose(), "of the environment");
    for name in ["../KEY", "a/b", "", "sk-proj-0123456789abcdef", "-x"] {
        assert!(keep_secret(&env, &Secret::new(name, "v")).is_err(), "{name:?}");
    }
    fs::set_permissions(folder.join("KEY"), fs::Permissions::from_mode(0o640)).unwrap();
    let refused = SecretResolver::without_store(env)
        .resolve("KEY")
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("chmod 600") && !refused.contains("second"),
        "{refused}"
    );
}
