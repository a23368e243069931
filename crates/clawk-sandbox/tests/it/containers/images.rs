//! Images: verified, unpacked once, read-only; a changed or dangerous layer is refused.

use std::fs;
use std::path::Path;

use clawk_plan::SandboxRefusal;
use clawk_sandbox::{LaunchError, LevelSettings, Spec, container};
use serde_json::json;

use super::super::image::{BusyBox, Layer};
use super::super::{launcher, text};
use super::{sandbox, script};

#[tokio::test]
async fn an_image_is_verified_unpacked_once_and_read_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let layout = folder.path().join("layout");
    let lower = BusyBox::layer()
        .file("etc/marker", "lower")
        .file("etc/gone", "x")
        .file("opt/dir/old", "x")
        .file("opt/dir/other", "x");
    let upper = Layer::default()
        .file("etc/marker", "upper")
        .file("etc/.wh.gone", "")
        .file("opt/dir/.wh..wh..opq", "")
        .file("opt/dir/new", "x");
    let digest = super::super::image::write(&layout, &[lower, upper]);
    let settings = LevelSettings {
        container: container::Settings {
            image: Some(layout.clone()),
            digest: Some(digest.clone()),
            ..Default::default()
        },
        cache: Some(folder.path().join("cache")),
        ..LevelSettings::default()
    };
    let with = |settings: &LevelSettings| launcher().with_levels(settings.clone());
    let plan = sandbox("container", json!({}));
    let spec = script(
        &plan,
        "cat /etc/marker; ls /etc/gone /opt/dir; ls /usr/bin/python3; echo x > /etc/marker; echo ok > /tmp/x && cat /tmp/x",
    );
    let outcome = with(&settings).launch(&spec).await.expect("runs");
    assert_eq!(text(&outcome.stdout), SAID, "{}", text(&outcome.stderr));
    assert!(
        outcome
            .obtained
            .mechanisms
            .contains(&format!("view:image:{digest}"))
    );
    refused_when_changed(&settings, &spec, &layout).await;
}

/// What the image's test prints.
const SAID: &str = "upper/opt/dir:\nnew\nok\n";

async fn refused_when_changed(settings: &LevelSettings, spec: &Spec, layout: &Path) {
    let with = |settings: &LevelSettings| launcher().with_levels(settings.clone());
    let folder = layout.parent().expect("a folder");
    // A changed byte is seen before anything of the image runs.
    let blobs = layout.join("blobs/sha256");
    let largest = fs::read_dir(&blobs)
        .expect("blobs")
        .flatten()
        .max_by_key(|e| e.metadata().expect("meta").len())
        .expect("one")
        .path();
    let mut content = fs::read(&largest).expect("read");
    let at = content.len() / 2;
    content[at] ^= 1;
    fs::write(&largest, content).expect("written");
    let fresh = LevelSettings {
        cache: Some(folder.join("other")),
        ..settings.clone()
    };
    match with(&fresh).launch(spec).await {
        Err(LaunchError::Refused(SandboxRefusal::Unavailable {
            mechanism, missing, ..
        })) => {
            assert_eq!(mechanism, "image");
            assert!(missing.contains("changed or damaged"), "{missing}");
        }
        other => panic!("{other:?}"),
    }
    // The unpacked one is used again without the layout's blobs, and another pin is refused.
    assert_eq!(
        text(&with(settings).launch(spec).await.expect("cached").stdout),
        SAID
    );
    let mut pinned = settings.clone();
    pinned.container.digest = Some(format!("sha256:{}", "0".repeat(64)));
    assert!(matches!(
        with(&pinned).launch(spec).await,
        Err(LaunchError::Refused(SandboxRefusal::Unavailable { .. }))
    ));
}

#[test]
fn a_layer_that_leads_out_of_its_root_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).expect("made");
    let bad = [
        Layer::default().file("../outside/x", "x"),
        Layer::default()
            .link("way", outside.to_str().expect("utf-8"))
            .file("way/x", "x"),
        Layer::default()
            .link("way", "../../../../../../../outside")
            .file("way/x", "x"),
        Layer::default().hard_link("in", "../../outside/y"),
        Layer::default()
            .link("etc", "/etc")
            .hard_link("in", "etc/hostname"),
    ];
    fs::write(outside.join("y"), "y").expect("written");
    for (at, layer) in bad.into_iter().enumerate() {
        let layout = folder.path().join(format!("layout{at}"));
        super::super::image::write(&layout, &[layer]);
        let wanted = container::image::ImageRequest {
            layout,
            tag: None,
            digest: None,
            max_bytes: 1 << 20,
            owner: 0,
        };
        let result = container::image::unpack_image(&wanted, &folder.path().join("cache"));
        assert!(result.is_err(), "case {at}: {result:?}");
    }
    assert!(!outside.join("x").exists());
    let layout = folder.path().join("large");
    super::super::image::write(&layout, &[Layer::default().file("a", &"x".repeat(100_000))]);
    let wanted = container::image::ImageRequest {
        layout,
        tag: None,
        digest: None,
        max_bytes: 50_000,
        owner: 0,
    };
    let error = container::image::unpack_image(&wanted, &folder.path().join("cache")).expect_err("too large");
    assert!(format!("{error}").contains("max_image_mb"), "{error}");
    assert_eq!(
        left_in(&folder.path().join("cache")),
        0,
        "nothing half-made stays"
    );
}

fn left_in(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}
