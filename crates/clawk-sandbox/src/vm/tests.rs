use std::sync::Arc;

use super::Settings;
use crate::launch::{LaunchError, Launcher, LevelSettings, Spec};
use clawk_plan::level::{Level, SandboxRefusal};
use clawk_plan::plan::{Plan, PlanDefaults};

fn plan() -> Plan {
    Plan::for_undeclared(&PlanDefaults::default()).at_level(Level::Vm)
}

fn missing(refusal: SandboxRefusal) -> (String, String, String) {
    match refusal {
        SandboxRefusal::Unavailable {
            level,
            mechanism,
            missing,
            hint,
        } => {
            assert_eq!(level, Level::Vm);
            (mechanism, missing, hint)
        }
        other => panic!("{other}"),
    }
}

async fn refused(settings: Settings) -> (String, String, String) {
    let launcher = Launcher::default().with_levels(LevelSettings {
        vm: settings,
        ..LevelSettings::default()
    });
    let refusal = launcher.probe_level(Level::Vm).await.unwrap_err();
    // A run says the same, and so does who asks without starting anything.
    let error = launcher.launch(&Spec::new("/bin/true", Arc::new(plan()))).await;
    match error {
        Err(LaunchError::Refused(said)) => assert_eq!(said, refusal),
        other => panic!("{other:?}"),
    }
    assert_eq!(launcher.level_availability(Level::Vm), Err(refusal.clone()));
    missing(refusal)
}

#[tokio::test]
async fn without_qemu_nothing_runs() {
    let (mechanism, missing, hint) = refused(Settings {
        qemu: "no-such-qemu".to_owned(),
        ..Settings::default()
    })
    .await;
    assert_eq!(mechanism, "qemu");
    assert!(missing.contains("no-such-qemu"), "{missing}");
    assert!(hint.contains("qemu-system-x86"), "{hint}");
}

#[tokio::test]
async fn without_a_kernel_nothing_runs() {
    let (_, missing, hint) = refused(Settings {
        // Something that is there, so that the kernel is what is missing.
        qemu: "/bin/sh".to_owned(),
        kernel: Some("/no/such/vmlinuz-1".into()),
        ..Settings::default()
    })
    .await;
    assert!(missing.contains("/no/such/vmlinuz-1"), "{missing}");
    assert!(hint.contains("linux-image-cloud-amd64"), "{hint}");
}
