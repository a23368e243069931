//! What every type must survive: repetitions, any order, kills at any moment, limits, failures, a platform that is down, a token that
//! is revoked, many people at once. The counts add up, and nobody gets another's answer.
//!
//! CI runs one type for each transport; `cargo xtask soak` runs all of them, with the large numbers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_kernel::testing::Rig;
use serde_json::json;

use crate::fakes::{self, Fake, Said, Sky, Trouble, sky};
use crate::suite::{Stage, channel, direct, parrot, until};

const REPEAT: &str = "(this may be a repeat)";
/// What a test here waits for comes before this.
const PATIENCE: Duration = Duration::from_secs(120);
/// A storm is over after so long.
const STORM: Duration = Duration::from_secs(4);
/// Between two looks at what a fake was sent, each of which copies all of it.
const LOOK: Duration = Duration::from_millis(100);

/// A random number, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }

    fn shuffled<T>(&mut self, mut all: Vec<T>) -> Vec<T> {
        for at in (1..all.len()).rev() {
            let other = self.roll(at + 1);
            all.swap(at, other);
        }
        all
    }
}

fn messages(fake: &dyn Fake, count: u32, people: u32) -> Vec<Said> {
    let one = |n| direct(fake, n, 2 + n % people, &format!("say m{n}."));
    (1..=count).map(one).collect()
}

/// Who said a message.
fn of(n: u32, people: u32) -> u32 {
    2 + n % people
}

/// The answers: for each message where they went, and whether they are marked.
fn answers(fake: &dyn Fake) -> BTreeMap<u32, Vec<(String, bool)>> {
    let mut all: BTreeMap<u32, Vec<(String, bool)>> = BTreeMap::new();
    for sent in fake.sent() {
        let Some(number) = sent
            .text
            .rsplit('m')
            .next()
            .and_then(|rest| rest.split('.').next()?.parse().ok())
        else {
            panic!("an answer to nothing: {sent:?}");
        };
        all.entry(number)
            .or_default()
            .push((sent.conversation, sent.text.contains(REPEAT)));
    }
    all
}

/// Each is answered once, or marked as a repeat, where it was asked.
fn judge(fake: &dyn Fake, count: u32, people: u32) -> usize {
    judged(fake, (count, people), fake.knows_repeats())
}

fn judged(fake: &dyn Fake, (count, people): (u32, u32), known: bool) -> usize {
    let all = answers(fake);
    assert_eq!(all.len(), usize::try_from(count).unwrap(), "{}", fake.kind());
    let mut marked = 0;
    for (n, answers) in &all {
        let home = fake.direct(of(*n, people));
        assert!(
            answers.iter().all(|(place, _)| *place == home),
            "{n} belongs to {home}: {answers:?}"
        );
        let plain = answers.iter().filter(|(_, marked)| !marked).count();
        assert!(
            plain <= 1,
            "{}: m{n} was answered twice and not marked: {answers:?}",
            fake.kind()
        );
        if known {
            assert_eq!(
                answers.len(),
                1,
                "{}: m{n} is known there: {answers:?}",
                fake.kind()
            );
        }
        marked += answers.len() - plain;
    }
    assert_eq!(fake.faults(), Vec::<String>::new());
    marked
}

async fn all_answered(fake: &dyn Fake, count: u32) {
    let start = Instant::now();
    while answers(fake).len() < usize::try_from(count).unwrap() {
        assert!(
            start.elapsed() < patience(usize::try_from(count).unwrap()),
            "{}: {} of {count}",
            fake.kind(),
            answers(fake).len()
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Nothing is owed any more, and the numbers say what happened.
async fn adds_up(stage: &Stage, accepted: u32) {
    let start = Instant::now();
    loop {
        let report = stage.report().await;
        if report.queued == 0 && report.delivered >= u64::from(accepted) {
            assert_eq!(
                (report.accepted, report.dead),
                (u64::from(accepted), 0),
                "{report:?}"
            );
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{report:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn repetitions_and_any_order(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let said = messages(&*fake, 60, 10);
    let twice = Dice(1).shuffled([said.clone(), said].concat());
    for said in &twice {
        fake.says(said).await;
    }
    all_answered(&*fake, 60).await;
    adds_up(&stage, 60).await;
    until(|| async { stage.report().await.duplicates == 60 }).await;
    assert_eq!(judge(&*fake, 60, 10), 0);
    stage.end().await;
}

async fn limits_with_and_without_a_wait(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let sky = sky(&*fake);
    let said = messages(&*fake, 8, 4);
    for (n, said) in said.iter().enumerate() {
        match n {
            0 => *sky.lock().unwrap() = Sky::Limited(3, Some(1)),
            4 => *sky.lock().unwrap() = Sky::Limited(3, None),
            _ => {}
        }
        fake.says(said).await;
    }
    all_answered(&*fake, 8).await;
    adds_up(&stage, 8).await;
    let marked = judge(&*fake, 8, 4);
    // A poll that is limited ends the connection, and what was under way then is not known.
    assert!(
        marked == 0 || fake.transport() == "polling",
        "the platform surely did not have them: {marked}"
    );
    stage.end().await;
}

async fn failures_and_a_platform_that_is_down(fake: Arc<dyn Fake>) {
    let sky = sky(&*fake);
    // Down when the agent starts.
    *sky.lock().unwrap() = Sky::Down;
    let over = Arc::clone(&sky);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        *over.lock().unwrap() = Sky::Clear;
    });
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let said = messages(&*fake, 12, 4);
    for (n, said) in said.iter().enumerate() {
        match n {
            2 => *sky.lock().unwrap() = Sky::Broken(3),
            // Down later.
            6 => *sky.lock().unwrap() = Sky::Down,
            9 => *sky.lock().unwrap() = Sky::Clear,
            _ => {}
        }
        fake.says(said).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    all_answered(&*fake, 12).await;
    judge(&*fake, 12, 4);
    stage.end().await;
}

async fn a_token_that_is_revoked_while_people_write(fake: Arc<dyn Fake>) {
    if !fake.checks_token() {
        return;
    }
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let said = messages(&*fake, 20, 5);
    for (n, said) in said.iter().enumerate() {
        if n == 10 {
            all_answered(&*fake, 10).await;
            fake.trouble(Trouble::WrongToken);
        }
        fake.says(said).await;
    }
    until(|| async {
        let report = stage.report().await;
        let ended = report.delivered + report.queued + report.dead;
        report.accepted >= 10 && ended == report.accepted
    })
    .await;
    fake.trouble(Trouble::Nothing);
    let stage = stage.restarted().await;
    // A person looks at the dead letters.
    for row in stage
        .kernel
        .read_outbox(100)
        .await
        .unwrap()
        .into_iter()
        .filter(|row| row.dead)
    {
        stage
            .kernel
            .retry_delivery(row.owed.message, "test")
            .await
            .unwrap();
    }
    for said in &said {
        fake.says(said).await;
    }
    all_answered(&*fake, 20).await;
    judge(&*fake, 20, 5);
    stage.end().await;
}

/// An agent in a runtime of its own, which ends like a process that is killed: wherever it is.
struct Life {
    runtime: tokio::runtime::Runtime,
    stage: Stage,
}

impl Life {
    async fn begin(rig: Rig, fake: &Arc<dyn Fake>, folder: &Arc<tempfile::TempDir>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let begun = Stage::on(rig, Arc::clone(fake), json!({}), Arc::clone(folder));
        let stage = runtime.spawn(begun).await.unwrap();
        Self { runtime, stage }
    }

    fn say(&self, said: Vec<Said>) {
        let fake = Arc::clone(&self.stage.fake);
        self.runtime.spawn(async move {
            for said in &said {
                fake.says(said).await;
            }
        });
    }

    /// What is durable is all that is left.
    async fn kill(self) -> Rig {
        // Every task ends where it waits next; none may go on beside the next life.
        let runtime = self.runtime;
        let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)));
        ended.await.unwrap();
        let mut rig = self.stage.rig.clone();
        rig.journal = Arc::new(self.stage.rig.journal.cut(self.stage.rig.journal.events().len()));
        rig
    }
}

async fn killed_at_any_moment(fake: Arc<dyn Fake>, kills: usize) -> String {
    const COUNT: u32 = 100;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut rig = parrot(json!([channel(&*fake, &json!({}))]));
    let (mut dice, said) = (Dice(7), messages(&*fake, COUNT, 10));
    for life in 0..kills {
        let alive = Life::begin(rig, &fake, &folder).await;
        // Whatever the platform was not told to forget, and much that it was.
        let upto = said.len() * (life + 1) / kills;
        alive.say(dice.shuffled(said[..upto].to_vec()));
        tokio::time::sleep(Duration::from_millis(u64::try_from(dice.roll(60)).unwrap())).await;
        rig = alive.kill().await;
    }
    let stage = Stage::on(rig, Arc::clone(&fake), json!({}), folder).await;
    for said in &said {
        fake.says(said).await;
    }
    let begun = Instant::now();
    while answers(&*fake).len() < said.len() {
        let left = said
            .iter()
            .filter(|said| !answers(&*fake).contains_key(&said.n))
            .map(|said| said.n);
        assert!(
            begun.elapsed() < PATIENCE,
            "{:?} are not answered; {:?}; {:?}",
            left.collect::<Vec<_>>(),
            stage.report().await,
            stage.rig.journal.inbox()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let start = Instant::now();
    while stage.report().await.queued > 0 {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let marked = judged(&*fake, (COUNT, 10), fake.knows_repeats_after_a_kill());
    // Each is one turn.
    assert_eq!(stage.rig.journal.inbox().len(), usize::try_from(COUNT).unwrap());
    stage.end().await;
    format!("{kills} kills: {COUNT} messages, {marked} answers marked as a repeat")
}

async fn many_people_at_once(fake: Arc<dyn Fake>, count: u32, people: u32) -> String {
    let before = resident_kib();
    let stage = Arc::new(Stage::new(Arc::clone(&fake), json!({})).await);
    let (sky, start) = (sky(&*fake), Instant::now());
    let lanes: Vec<Vec<Said>> = (0..people)
        .map(|person| {
            messages(&*fake, count, people)
                .into_iter()
                .filter(|said| said.n % people == person)
                .collect()
        })
        .collect();
    let mut tasks = Vec::new();
    for lane in lanes {
        let fake = Arc::clone(&fake);
        tasks.push(tokio::spawn(async move {
            for said in &lane {
                fake.says(said).await;
            }
        }));
    }
    let quarter = usize::try_from(count / 4).unwrap();
    let mut storms = vec![Sky::Limited(20, Some(1)), Sky::Broken(20), Sky::Limited(20, None)];
    while let Some(storm) = storms.pop() {
        until_answered(&*fake, quarter * (3 - storms.len())).await;
        *sky.lock().unwrap() = storm;
        // A storm is over after a time, also where few requests come: a channel that can't connect asks ever more rarely.
        let sky = Arc::clone(&sky);
        tokio::spawn(async move {
            tokio::time::sleep(STORM).await;
            let mut now = sky.lock().unwrap();
            if matches!(*now, Sky::Limited(..) | Sky::Broken(_)) {
                *now = Sky::Clear;
            }
        });
    }
    for task in tasks {
        task.await.unwrap();
    }
    all_answered(&*fake, count).await;
    let begun = Instant::now();
    while stage.report().await.queued > 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", stage.report().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = stage.report().await;
    assert_eq!(
        (report.accepted, report.dead),
        (u64::from(count), 0),
        "{report:?}"
    );
    let marked = judge(&*fake, count, people);
    let grown = resident_kib().saturating_sub(before);
    // The journal of the tests is in memory, and so is all that the fake was sent: a few KiB for each message.
    assert!(grown < 200_000 + u64::from(count) * 40, "{grown} KiB");
    let took = start.elapsed();
    let told = format!(
        "{}: {count} messages of {people} people in {} ms, {marked} marked as a repeat, {} duplicates, {grown} KiB more",
        fake.kind(),
        took.as_millis(),
        report.duplicates
    );
    Arc::into_inner(stage).unwrap().end().await;
    told
}

async fn until_answered(fake: &dyn Fake, count: usize) {
    let start = Instant::now();
    while fake.sent().len() < count {
        assert!(
            start.elapsed() < patience(count),
            "{} of {count}",
            fake.sent().len()
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Many messages take longer: the journal of these tests is a list in memory.
fn patience(count: usize) -> Duration {
    PATIENCE + Duration::from_millis(150 * u64::try_from(count).unwrap())
}

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4
}

macro_rules! weather {
    ($($platform:ident: $(#[$when:meta])*;)*) => { $(
        mod $platform {
            use super::*;

            async fn fake() -> Arc<dyn Fake> {
                Arc::new(fakes::$platform::start().await)
            }

            #[tokio::test]
            $(#[$when])*
            async fn repetitions_and_any_order() {
                super::repetitions_and_any_order(fake().await).await;
            }

            #[tokio::test]
            $(#[$when])*
            async fn limits_with_and_without_a_wait() {
                super::limits_with_and_without_a_wait(fake().await).await;
            }

            #[tokio::test]
            $(#[$when])*
            async fn failures_and_a_platform_that_is_down() {
                super::failures_and_a_platform_that_is_down(fake().await).await;
            }

            #[tokio::test]
            $(#[$when])*
            async fn a_token_that_is_revoked_while_people_write() {
                super::a_token_that_is_revoked_while_people_write(fake().await).await;
            }

            #[tokio::test]
            $(#[$when])*
            async fn killed_at_ten_moments() {
                println!("{}", super::killed_at_any_moment(fake().await, 10).await);
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            $(#[$when])*
            async fn many_people_at_once() {
                println!("{}", super::many_people_at_once(fake().await, 400, 40).await);
            }

            #[tokio::test]
            #[ignore = "takes minutes; `cargo xtask soak` runs it"]
            async fn killed_at_a_hundred_moments() {
                println!("{}", super::killed_at_any_moment(fake().await, 100).await);
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "takes minutes; `cargo xtask soak` runs it"]
            async fn ten_thousand_messages_of_two_hundred_people() {
                println!("{}", super::many_people_at_once(fake().await, 10_000, 200).await);
            }
        }
    )* };
}

// One for each transport in CI: polling, websocket, webhook; `custom` is in the binary's own tests.
weather! {
    telegram:;
    lark:;
    line:;
    telegram_hook: #[ignore = "`cargo xtask soak` runs it"];
    slack: #[ignore = "`cargo xtask soak` runs it"];
    slack_hook: #[ignore = "`cargo xtask soak` runs it"];
    discord: #[ignore = "`cargo xtask soak` runs it"];
    matrix: #[ignore = "`cargo xtask soak` runs it"];
    whatsapp: #[ignore = "`cargo xtask soak` runs it"];
    lark_hook: #[ignore = "`cargo xtask soak` runs it"];
    dingtalk: #[ignore = "`cargo xtask soak` runs it"];
    dingtalk_hook: #[ignore = "`cargo xtask soak` runs it"];
    qq: #[ignore = "`cargo xtask soak` runs it"];
    qq_hook: #[ignore = "`cargo xtask soak` runs it"];
    wechat: #[ignore = "`cargo xtask soak` runs it"];
}
