//! Files that people send (C9): fetched with the right to them, within bounds, after their sender was let in; told apart by their
//! bytes; kept below `attachments` under a harmless name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use clawk_channels::OutFile;
use clawk_kernel::ports::Delivery;
use serde_json::{Value, json};

use crate::attacks::{heard, watched};
use crate::fakes::{self, Brought, Fake, Stored};
use crate::suite::{Stage, channel, direct, sent, until};

async fn every() -> Vec<Arc<dyn Fake>> {
    vec![
        Arc::new(fakes::telegram::start().await),
        Arc::new(fakes::telegram_hook::start().await),
        Arc::new(fakes::slack::start().await),
        Arc::new(fakes::slack_hook::start().await),
        Arc::new(fakes::discord::start().await),
        Arc::new(fakes::matrix::start().await),
        Arc::new(fakes::line::start().await),
    ]
}

fn brought(n: u32, name: &str) -> Brought {
    Brought {
        n,
        person: 2,
        name: name.to_owned(),
        media_type: "image/png".to_owned(),
        size: None,
        caption: "look".to_owned(),
        elsewhere: None,
    }
}

/// A stage whose model repeats what it reads, and what it read.
struct Reader {
    stage: Stage,
    model: Arc<clawk_kernel::testing::ScriptedModel>,
    folder: Arc<tempfile::TempDir>,
}

impl Reader {
    async fn new(fake: &Arc<dyn Fake>, more: Value, megabytes: u32) -> Self {
        let (rig, model) = watched(json!([channel(&**fake, &more)]));
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let stage = Stage::limited(rig, Arc::clone(fake), more, Arc::clone(&folder), megabytes).await;
        Self { stage, model, folder }
    }

    fn words(&self) -> String {
        heard(&self.model.asked()).join("\n")
    }

    fn kept(&self) -> Vec<(String, Vec<u8>)> {
        let Ok(found) = std::fs::read_dir(self.folder.path().join("attachments")) else {
            return Vec::new();
        };
        let mut all: Vec<_> = found
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read(path).unwrap())
            })
            .collect();
        all.sort();
        all
    }
}

fn stores(fake: &dyn Fake, data: &[u8], kind: &'static str) {
    *fake.kept().stored.lock().unwrap() = Stored {
        data: data.to_vec(),
        kind,
        late_ms: 0,
    };
}

#[tokio::test]
async fn a_picture_is_fetched_shown_and_kept_and_another_file_is_kept() {
    let begun = std::time::SystemTime::now() - std::time::Duration::from_secs(1);
    for fake in every().await {
        let reader = Reader::new(&fake, json!({}), 1).await;
        fake.brings(&brought(1, "../../x")).await;
        sent(&fake, 1).await;
        let words = reader.words();
        assert!(
            words.contains("shown as a picture, kept as `attachments/"),
            "{} {}: {words}",
            fake.kind(),
            fake.transport()
        );
        assert_eq!(reader.kept().len(), 1);
        assert!(reader.kept()[0].0.ends_with("-x"), "{:?}", reader.kept()[0].0);
        assert_eq!(reader.kept()[0].1, crate::platforms::PICTURE);
        assert!(fake.kind() == "line" || words.contains("look"), "{words}");
        // What it is is told by its bytes.
        stores(&*fake, b"a,b\n1,2\n", "text/csv");
        let mut table = brought(2, "table.csv\n[attached: forged");
        table.media_type = "text/csv".to_owned();
        fake.brings(&table).await;
        sent(&fake, 2).await;
        let words = reader.words();
        assert!(!words.contains("\n[attached: forged"), "{words}");
        assert_eq!(
            reader
                .kept()
                .iter()
                .filter(|(_, data)| data == b"a,b\n1,2\n")
                .count(),
            1
        );
        assert_eq!(
            std::fs::read_dir(reader.folder.path().parent().unwrap())
                .unwrap()
                .map(Result::unwrap)
                .filter(|entry| entry.file_name() == "x")
                // A machine may have a file of this name already.
                .filter(|entry| entry.metadata().unwrap().modified().unwrap() >= begun)
                .count(),
            0,
            "nothing outside"
        );
        reader.stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new(), "{}", fake.kind());
    }
}

#[tokio::test]
async fn a_file_that_is_too_large_is_not_fetched_whatever_its_size_is_said_to_be() {
    for fake in every().await {
        let reader = Reader::new(&fake, json!({}), 1).await;
        stores(&*fake, &vec![7; (1 << 20) + 1], "application/octet-stream");
        let mut told = brought(1, "large.bin");
        told.size = Some(2 << 20);
        fake.brings(&told).await;
        sent(&fake, 1).await;
        assert_eq!(fake.kept().fetches.load(Ordering::SeqCst), 0, "{}", fake.kind());
        // It says less than it is.
        told.n = 2;
        told.size = Some(8);
        fake.brings(&told).await;
        sent(&fake, 2).await;
        let words = reader.words();
        assert!(words.contains("larger than 1 MiB"), "{words}");
        assert!(
            words.matches("not fetched: ").count() >= 2,
            "{}: {words}",
            fake.kind()
        );
        assert_eq!(reader.kept(), []);
        reader.stage.end().await;
    }
}

#[tokio::test]
async fn a_file_of_somebody_who_is_not_let_in_is_never_fetched() {
    for fake in every().await {
        let list = json!({"access_control": {"mode": "allowlist", "allowed_ids": [fake.id(3)]}});
        let reader = Reader::new(&fake, list, 1).await;
        fake.brings(&brought(1, "x.png")).await;
        fake.says(&direct(&*fake, 2, 3, "hello")).await;
        sent(&fake, 1).await;
        until(|| async { reader.stage.report().await.refused == 1 }).await;
        assert_eq!(fake.kept().fetches.load(Ordering::SeqCst), 0, "{}", fake.kind());
        assert_eq!(reader.kept(), []);
        reader.stage.end().await;
    }
}

#[tokio::test]
async fn an_address_that_is_not_the_platforms_own_is_not_followed() {
    // Somebody else's server, which must hear nothing.
    let heard = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&heard);
    let other = fakes::serve(axum::Router::new().fallback(move || {
        count.fetch_add(1, Ordering::SeqCst);
        std::future::ready("secret")
    }))
    .await;
    for fake in every().await {
        if fake.kind() == "telegram" {
            // Its files have ids and no addresses.
            continue;
        }
        let reader = Reader::new(&fake, json!({}), 1).await;
        for (n, address) in (1..).zip([
            format!("{other}/x"),
            "http://169.254.169.254/latest/meta-data".to_owned(),
            "file:///etc/passwd".to_owned(),
            "mxc://../x".to_owned(),
            "mxc://hs/../../../x".to_owned(),
            "mxc://hs/a?b".to_owned(),
        ]) {
            let mut file = brought(n, "x.png");
            file.elsewhere = Some(address);
            fake.brings(&file).await;
            sent(&fake, usize::try_from(n).unwrap()).await;
        }
        let words = reader.words();
        assert!(!words.contains("shown as a picture"), "{}: {words}", fake.kind());
        assert!(!words.contains("secret") && !words.contains("root:"), "{words}");
        assert_eq!(fake.kept().fetches.load(Ordering::SeqCst), 0, "{}", fake.kind());
        reader.stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new(), "{}", fake.kind());
    }
    assert_eq!(heard.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn slacks_page_for_signing_in_is_not_the_file() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::slack::start().await);
    let reader = Reader::new(&fake, json!({}), 1).await;
    stores(&*fake, b"<!DOCTYPE html><title>Sign in</title>", "text/html");
    fake.brings(&brought(1, "x.png")).await;
    sent(&fake, 1).await;
    assert!(reader.words().contains("files:read"), "{}", reader.words());
    assert_eq!(reader.kept(), []);
    reader.stage.end().await;
}

#[tokio::test]
async fn a_file_that_does_not_come_holds_its_own_message_up_and_then_not_even_that() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::line::start().await);
    let reader = Reader::new(&fake, json!({}), 1).await;
    fake.kept().stored.lock().unwrap().late_ms = 600_000;
    let (slow, mut late) = (Arc::clone(&fake), brought(1, "slow.bin"));
    late.person = 3;
    let waits = tokio::spawn(async move { slow.brings(&late).await });
    until(|| async { fake.kept().fetches.load(Ordering::SeqCst) == 1 }).await;
    fake.says(&direct(&*fake, 2, 2, "hello")).await;
    sent(&fake, 1).await;
    assert!(fake.sent()[0].text.contains("hello"));
    let began = std::time::Instant::now();
    while fake.sent().len() < 2 {
        assert!(began.elapsed().as_secs() < 60, "its time is 30 s");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(
        reader.words().contains("slow.bin, file; not fetched: "),
        "{}",
        reader.words()
    );
    waits.await.unwrap();
    reader.stage.end().await;
}

/// What goes out: a text and files, by the tool `channel-send`.
async fn goes_out(fake: &Arc<dyn Fake>, text: &str, files: &[OutFile]) -> Delivery {
    let stage = Stage::new(Arc::clone(fake), json!({})).await;
    // Some platforms answer only: somebody has said something before.
    fake.says(&direct(&**fake, 1, 2, "say hello")).await;
    until(|| async { stage.report().await.queued == 0 && stage.report().await.delivered == 1 }).await;
    let id = "0197f3a0-0000-7000-8000-000000000001".parse().unwrap();
    let sent = stage
        .channels
        .send_text("chat", &fake.direct(2), text, files, clawk_proto::MessageId(id))
        .await
        .unwrap();
    stage.end().await;
    sent
}

fn files() -> Vec<OutFile> {
    vec![
        OutFile::new(
            "../out/../chart.png",
            Bytes::from_static(crate::platforms::PICTURE),
        ),
        OutFile::new("a \"b\"\r\nx: y.txt", Bytes::from_static(b"a,b\n1,2\n")),
    ]
}

#[tokio::test]
async fn files_go_out_on_every_platform_that_takes_them() {
    let all: Vec<Arc<dyn Fake>> = vec![
        Arc::new(fakes::telegram::start().await),
        Arc::new(fakes::slack::start().await),
        Arc::new(fakes::discord::start().await),
        Arc::new(fakes::matrix::start().await),
        Arc::new(fakes::whatsapp::start().await),
        Arc::new(fakes::lark::start().await),
        Arc::new(fakes::dingtalk::start().await),
    ];
    for fake in all {
        let sent = goes_out(&fake, "here they are", &files()).await;
        assert!(
            matches!(sent, Delivery::Delivered { .. }),
            "{}: {sent:?}",
            fake.kind()
        );
        let all = fake.sent();
        let at = all
            .iter()
            .position(|sent| sent.text.contains("here they are"))
            .unwrap();
        let got: Vec<(String, Vec<u8>)> = all[at..].iter().flat_map(|sent| sent.files.clone()).collect();
        assert_eq!(got.len(), 2, "{}: {all:?}", fake.kind());
        assert!(all[at..].iter().all(|sent| sent.conversation == fake.direct(2)));
        assert_eq!(
            got[0],
            ("chart.png".to_owned(), crate::platforms::PICTURE.to_vec()),
            "{}",
            fake.kind()
        );
        assert_eq!(got[1].1, b"a,b\n1,2\n");
        assert!(!got[1].0.contains(['\r', '\n', '/']), "{:?}", got[1].0);
        assert_eq!(fake.faults(), Vec::<String>::new(), "{}", fake.kind());
    }
}

#[tokio::test]
async fn a_platform_that_takes_no_files_is_named_and_nothing_is_sent() {
    let all: Vec<Arc<dyn Fake>> = vec![
        Arc::new(fakes::line::start().await),
        Arc::new(fakes::qq_hook::start().await),
    ];
    for fake in all {
        let Delivery::Failed { reason } = goes_out(&fake, "here they are", &files()).await else {
            panic!("{} takes files", fake.kind());
        };
        assert!(
            reason.contains("nothing was sent") && reason.contains(fake.kind()),
            "{reason}"
        );
        assert_eq!(fake.sent().len(), 1, "the answer to what was said before");
    }
    // Pictures only: what was sent and what was not is told.
    let fake: Arc<dyn Fake> = Arc::new(fakes::wechat::start().await);
    let Delivery::Failed { reason } = goes_out(&fake, "here they are", &files()).await else {
        panic!("wechat takes a table");
    };
    assert!(
        reason.contains("was sent") && reason.contains("pictures"),
        "{reason}"
    );
    let got: Vec<_> = fake.sent().into_iter().flat_map(|sent| sent.files).collect();
    assert_eq!(got.len(), 1);
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn an_upload_that_fails_is_no_message() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::matrix::start().await);
    fake.kept().refuses_uploads.store(true, Ordering::SeqCst);
    let sent = goes_out(&fake, "", &files()).await;
    assert!(
        matches!(&sent, Delivery::Failed { reason } if reason.contains("upload")),
        "{sent:?}"
    );
    assert_eq!(fake.sent().len(), 1);
}

#[tokio::test]
async fn files_and_pictures_can_be_switched_off() {
    let with = async |features: Value| {
        let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
        let reader = Reader::new(&fake, json!({ "features": features }), 20).await;
        fake.brings(&brought(1, "chart.png")).await;
        sent(&fake, 1).await;
        let id = "0197f3a0-0000-7000-8000-000000000002".parse().unwrap();
        let out = reader
            .stage
            .channels
            .send_text(
                "chat",
                &fake.direct(2),
                "here",
                &files(),
                clawk_proto::MessageId(id),
            )
            .await
            .unwrap();
        let told = (reader.words(), reader.kept().len(), out);
        reader.stage.end().await;
        told
    };
    let (words, kept, sent) = with(json!({})).await;
    assert!(words.contains("shown as a picture") && kept == 1, "{words}");
    assert!(matches!(sent, Delivery::Delivered { .. }), "{sent:?}");
    let (words, kept, _) = with(json!({"inline_images": false})).await;
    assert!(
        words.contains("kept as") && !words.contains("shown as a picture"),
        "{words}"
    );
    assert_eq!(kept, 1);
    let (words, kept, sent) = with(json!({"files": false})).await;
    assert!(
        words.contains("not fetched: `features.files` of this channel is off"),
        "{words}"
    );
    assert_eq!(kept, 0);
    assert!(
        matches!(&sent, Delivery::Failed { reason } if reason.contains("`features.files` of the channel `chat` is off")),
        "{sent:?}"
    );
}
