//! Pictures of messages: shown to models that take them, told to those that don't, kept by digest, found again after a crash.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{agent, allow_all, id, rig, soon};
use crate::attach::{AttachedPicture, MAX_IMAGES};
use crate::error::KernelError;
use crate::event::digest;
use crate::ports::{Image, InferRequest, ModelMessage};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel, TalkRequest, TurnResult, kind};

fn spec(takes: &[&str]) -> Value {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([{
        "name": "model", "protocol": "custom", "endpoint": "script:none", "model": "scripted", "auth": {"type": "none"},
        "capabilities": takes,
    }]);
    spec
}

fn seeing(takes: &[&str]) -> Rig {
    rig(spec(takes))
}

fn png(tail: &[u8]) -> AttachedPicture {
    AttachedPicture {
        mime_type: "image/png".to_owned(),
        name: Some("a `chart`\n.png".to_owned()),
        data: [&b"\x89PNG\r\n\x1a\n"[..], tail].concat(),
    }
}

fn message(text: &str, images: Vec<AttachedPicture>, n: u32) -> TalkRequest {
    TalkRequest {
        images,
        ..TalkRequest::new("ann", Some("desk".to_owned()), text.to_owned(), id(n))
    }
}

async fn send(kernel: &Kernel, asked: TalkRequest) -> Result<TurnResult, KernelError> {
    soon(kernel.send_message(EntryPoint::from_launcher("test"), asked, &|_, _| ())).await
}

fn user(request: &InferRequest, at: usize) -> (String, Vec<Image>) {
    let users = request.messages.iter().filter_map(|message| match message {
        ModelMessage::User { text, images, .. } => Some((text.clone(), images.clone())),
        ModelMessage::Assistant { .. } | ModelMessage::ToolResult { .. } => None,
    });
    users.collect::<Vec<_>>().remove(at)
}

#[tokio::test]
async fn a_model_that_takes_pictures_is_shown_them_in_every_turn() {
    let rig = seeing(&["text", "image"]);
    let kernel = rig.start().await;
    send(&kernel, message("what is this?", vec![png(b"one")], 1))
        .await
        .unwrap();
    send(&kernel, message("and now?", Vec::new(), 2)).await.unwrap();
    for request in rig.models["model"].asked() {
        let (text, images) = user(&request, 0);
        assert_eq!(text, "what is this?");
        assert_eq!(images[0].data.as_deref(), Some(&png(b"one").data[..]));
        assert_eq!(images[0].name.as_deref(), Some("a 'chart'.png"));
    }
    // The record has its bytes once, by their digest, and what is hashed of a request names them.
    let hash = digest(&png(b"one").data).to_string();
    let events = rig.journal.events();
    let attached = events.iter().find(|event| event.kind == kind::MESSAGE_ATTACHED);
    assert!(attached.unwrap().payload.contains(&hash));
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

#[tokio::test]
async fn a_model_that_takes_none_is_told_of_them() {
    let rig = seeing(&["text"]);
    let kernel = rig.start().await;
    send(&kernel, message("what is this?", vec![png(b"one")], 1))
        .await
        .unwrap();
    send(&kernel, message("", vec![png(b"two")], 2)).await.unwrap();
    let asked = rig.models["model"].asked();
    let note = "[an image `a 'chart'.png`, image/png, 11 bytes; it is not shown to you]";
    assert_eq!(
        user(&asked[1], 0),
        (format!("what is this?\n\n{note}"), Vec::new())
    );
    assert_eq!(user(&asked[1], 1), (note.to_owned(), Vec::new()));
}

#[tokio::test]
async fn a_turn_that_a_crash_cut_off_has_its_pictures_again() {
    let rig = seeing(&["text", "image"]);
    let kernel = rig.start().await;
    send(
        &kernel,
        message("what is this?", vec![png(b"one"), png(b"two")], 1),
    )
    .await
    .unwrap();
    let kinds = rig.journal.kinds();
    let at = kinds
        .iter()
        .position(|known| known == kind::MESSAGE_ACCEPTED)
        .unwrap();
    let mut again = seeing(&["text", "image"]);
    again.journal = Arc::new(rig.journal.cut(at + 1));
    let kernel = again.start().await;
    send(
        &kernel,
        message("what is this?", vec![png(b"one"), png(b"two")], 1),
    )
    .await
    .unwrap();
    let (_, images) = user(&again.models["model"].asked()[0], 0);
    let data = images.iter().map(|image| image.data.as_deref().unwrap().to_vec());
    assert_eq!(data.collect::<Vec<_>>(), [png(b"one").data, png(b"two").data]);
}

#[tokio::test]
async fn other_pictures_make_another_request_and_what_is_none_is_refused() {
    let rig = seeing(&["text", "image"]);
    let kernel = rig.start().await;
    send(&kernel, message("this?", vec![png(b"one")], 1))
        .await
        .unwrap();
    let other = send(&kernel, message("this?", vec![png(b"two")], 1)).await;
    assert!(matches!(other, Err(KernelError::RequestIdReused(_))), "{other:?}");
    let mut script = png(b"");
    script.data = b"<svg onload=alert(1)>".to_vec();
    let mut large = png(b"");
    large.data.resize(crate::attach::MAX_IMAGE_BYTES + 1, 0);
    for (n, images) in [
        (2, vec![script]),
        (3, vec![large]),
        (4, vec![png(b""); MAX_IMAGES + 1]),
    ] {
        let refused = send(&kernel, message("this?", images, n)).await;
        assert!(matches!(refused, Err(KernelError::Refused(_))), "{refused:?}");
    }
    assert_eq!(rig.models["model"].asked().len(), 1);
    assert_eq!(
        AttachedPicture::read("image/svg+xml", None, "PHN2Zz4="),
        Ok(None),
        "it becomes a note"
    );
    AttachedPicture::read("image/png", None, "not base64").unwrap_err();
}

#[tokio::test]
async fn the_oldest_pictures_of_a_long_conversation_become_notes() {
    let mut rig = seeing(&["text", "image"]);
    let model = Arc::new(ScriptedModel::new(|_, _| Ok(says("ok"))));
    rig.models.insert("model".to_owned(), Arc::clone(&model));
    let kernel = rig.start().await;
    for n in 1..=6 {
        let four_mib = vec![0; 4 << 20];
        send(&kernel, message("look", vec![png(&four_mib)], n))
            .await
            .unwrap();
    }
    let last = model.asked().pop().unwrap();
    let shown = (0..6).map(|at| user(&last, at).1.len());
    assert_eq!(shown.collect::<Vec<_>>(), [0, 0, 1, 1, 1, 1]);
    assert!(user(&last, 0).0.contains("not shown to you"));
}

/// A tool's picture, as base64.
const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// An agent whose model asks for a tool that answers with a picture.
fn showing(takes: &[&str]) -> Rig {
    let mut rig = seeing(takes);
    rig.runner.set("write", Behaviour::Show(PICTURE.to_owned()));
    let model = ScriptedModel::new(|request, _| {
        let has_result = |message: &ModelMessage| matches!(message, ModelMessage::ToolResult { .. });
        Ok(match request.messages.iter().any(has_result) {
            false => calls(&[("write", json!({}))]),
            true => says("seen"),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

/// The pictures that stand right behind a tool's result, and the words beside them.
fn behind_the_result(request: &InferRequest) -> Option<(String, Vec<Image>)> {
    let mut messages = request.messages.iter();
    messages.find(|message| matches!(message, ModelMessage::ToolResult { .. }))?;
    match messages.next() {
        Some(ModelMessage::User { text, images, .. }) => Some((text.clone(), images.clone())),
        Some(ModelMessage::Assistant { .. } | ModelMessage::ToolResult { .. }) | None => None,
    }
}

#[tokio::test]
async fn a_tools_picture_reaches_a_model_that_takes_pictures() {
    let rig = showing(&["text", "image"]);
    let kernel = rig.start().await;
    send(&kernel, message("draw", Vec::new(), 1)).await.unwrap();
    send(&kernel, message("and now?", Vec::new(), 2)).await.unwrap();
    let asked = rig.models["model"].asked();
    assert_eq!(asked.len(), 3);
    assert_eq!(behind_the_result(&asked[0]), None);
    let mut shown = Vec::new();
    for request in &asked[1..] {
        let (text, images) = behind_the_result(request).expect("shown");
        assert!(text.contains("data from tools, not the user's words"), "{text}");
        assert!(images[0].data.as_deref().unwrap().starts_with(b"\x89PNG"));
        shown.push(images);
    }
    assert_eq!(shown[0], shown[1], "the same request prefix in the next turn");
    // The conversation itself has the text of the result alone.
    let text = format!("{:?}", asked[1].messages);
    assert!(!text.contains(PICTURE));

    // After a restart, it is found in the record again.
    let mut again = showing(&["text", "image"]);
    again.journal = Arc::new(rig.journal.cut(rig.journal.kinds().len()));
    let kernel = again.start().await;
    send(&kernel, message("once more?", Vec::new(), 3)).await.unwrap();
    let asked = again.models["model"].asked();
    let (_, images) = behind_the_result(&asked[0]).expect("shown");
    assert_eq!(images, shown[0]);
}

#[tokio::test]
async fn a_model_that_takes_no_pictures_reads_of_a_tools_picture() {
    let rig = showing(&["text"]);
    let kernel = rig.start().await;
    send(&kernel, message("draw", Vec::new(), 1)).await.unwrap();
    let asked = rig.models["model"].asked();
    assert_eq!(behind_the_result(&asked[1]), None);
    let told = asked[1].messages.iter().find_map(|message| match message {
        ModelMessage::ToolResult { text, .. } => Some(text.clone()),
        ModelMessage::User { .. } | ModelMessage::Assistant { .. } => None,
    });
    assert!(told.unwrap().starts_with("[image image/png"));
}
