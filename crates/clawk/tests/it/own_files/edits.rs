//! The agent's owner edits while its tools run, as editors do: another file is renamed over the old one, which takes a cover
//! away. And own files of more than one name.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::place::{Place, said};

/// Tries to change the manifest in every way that takes a moment.
const TRY: &str = "echo x >> claw.yaml; cp evil claw.yaml; echo x > claw.yaml; ln claw.yaml hard && echo x >> hard; \
    chmod 777 claw.yaml; python3 -c 'import os;os.fchmod(os.open(\"claw.yaml\",os.O_RDONLY),0o777)'; cp evil e; mv -f e claw.yaml; rm -f claw.yaml; ln -sf evil claw.yaml; sed -i s/./y/ claw.yaml; \
    echo x > clawk.toml; echo x >> policies/p.yaml; mv policies gone";

fn until(path: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < end, "{} never came", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As an editor does it.
fn edit(place: &Place, name: &str, more: &str) {
    let text = std::fs::read_to_string(place.agent(name)).unwrap() + more;
    std::fs::write(place.agent("claw.swp"), text).unwrap();
    std::fs::rename(place.agent("claw.swp"), place.agent(name)).unwrap();
}

#[test]
fn an_edit_takes_no_wall_away() {
    let container = Place::new(
        "container",
        "{ mode: scoped, mount_paths: [{ path: \".\", permissions: rw }] }",
    );
    for place in [Place::scoped(), Place::scoped().of_nobody(), container] {
        let wait = format!("touch here; while [ ! -e go ]; do sleep 0.05; done; {TRY}; touch tried");
        let (_, child) = place.start(&[("shell", json!({"command": wait}))]);
        until(&place.agent("here"));
        edit(&place, "claw.yaml", "# edited\n");
        edit(&place, "policies/p.yaml", "# edited\n");
        let before = place.own();
        std::fs::write(place.agent("go"), "").unwrap();
        let text = said(&child.wait_with_output().unwrap());
        assert!(place.agent("tried").exists(), "{text}");
        assert_eq!(place.own(), before, "{text}");
        assert!(before["claw.yaml"].ends_with("# edited\n"));
    }
}

#[test]
fn a_box_that_waits_has_no_stale_cover() {
    let place = Place::scoped();
    let wait = |n: u8| json!({"command": format!("touch -d 2001-01-01 claw.yaml; cat claw.yaml > seen{n}; touch here{n}; while [ ! -e go{n} ]; do sleep 0.05; done; {TRY}; touch tried{n}")});
    let (_, child) = place.start(&[("shell", wait(1)), ("shell", wait(2)), ("shell", wait(3))]);
    for n in 1..=3 {
        // While a call runs, a box for the next one waits already.
        until(&place.agent(&format!("here{n}")));
        std::thread::sleep(Duration::from_millis(300));
        let date = place.agent("claw.yaml").metadata().unwrap().mtime();
        assert!(date > 1_000_000_000, "a stale cover covers nothing: {date}");
        edit(&place, "claw.yaml", &format!("# edit {n}\n"));
        std::fs::write(place.agent(&format!("go{n}")), "").unwrap();
    }
    let before = place.own();
    let text = said(&child.wait_with_output().unwrap());
    assert!(place.agent("tried3").exists(), "{text}");
    assert_eq!(place.own(), before, "{text}");
    let seen = std::fs::read_to_string(place.agent("seen3")).unwrap();
    assert!(seen.ends_with("# edit 1\n# edit 2\n"), "{seen}");
}

#[test]
fn another_name_of_an_own_file_is_that_file() {
    let place = Place::scoped();
    std::fs::hard_link(place.agent("claw.yaml"), place.agent("other-name")).unwrap();
    std::fs::hard_link(place.agent("tools/shell.yaml"), place.agent("tool-name")).unwrap();
    let command =
        "echo x >> other-name; cp evil other-name; truncate -s 0 tool-name; chmod 777 tool-name; touch tried";
    let (before, child) = place.start(&[("shell", json!({"command": command}))]);
    let text = said(&child.wait_with_output().unwrap());
    assert!(place.agent("tried").exists(), "{text}");
    assert_eq!(place.own(), before, "{text}");
}

#[test]
fn nothing_comes_in_the_place_of_a_folder_that_would_lead_to_one() {
    let place = Place::scoped();
    let command = "mkdir -p e/clawk; echo x > e/clawk/config.toml; mv e config; ln -s e config; ln -s ../e/clawk config/clawk; \
        mkdir -p config; mv e/clawk config/clawk; ln -s ../e/clawk config/clawk; mkdir -p config/clawk; \
        cp e/clawk/config.toml config/clawk/config.toml; echo x > config/clawk/config.toml; touch tried";
    place.says(&[("shell", json!({"command": command}))]);
    let mut run = place.clawk(&["run", "claw.yaml", "-m", "go"]);
    let text = said(
        &run.env("XDG_CONFIG_HOME", place.agent("config"))
            .output()
            .unwrap(),
    );
    assert!(place.agent("tried").exists(), "{text}");
    assert!(place.agent("e/clawk/config.toml").exists() && place.agent("config/clawk").exists());
    assert!(!place.agent("config/clawk/config.toml").exists(), "{text}");
}

#[test]
fn a_link_on_the_way_stays() {
    for place in [Place::scoped(), Place::scoped().of_nobody()] {
        std::fs::create_dir(place.agent("real")).unwrap();
        std::fs::rename(place.agent("policies"), place.agent("real/policies")).unwrap();
        std::fs::rename(place.agent("script.yaml"), place.agent("real/script.yaml")).unwrap();
        symlink("real/policies", place.agent("policies")).unwrap();
        symlink("real/script.yaml", place.agent("script.yaml")).unwrap();
        let command = "rm -f policies script.yaml; ln -sfn evil policies; ln -sf evil script.yaml; mv policies p; mv real r; \
            echo x >> policies/p.yaml; echo x >> real/policies/p.yaml; echo x >> real/script.yaml; cp evil real/policies/p.tests.yaml; touch tried";
        let (before, child) = place.start(&[("shell", json!({"command": command}))]);
        let real = || {
            let text = |name: &str| std::fs::read_to_string(place.agent(name)).unwrap();
            (text("real/policies/p.yaml"), text("real/script.yaml"))
        };
        let there = real();
        let text = said(&child.wait_with_output().unwrap());
        assert!(place.agent("tried").exists(), "{text}");
        assert_eq!(place.own(), before, "{text}");
        assert_eq!(real(), there, "{text}");
        assert!(!place.agent("real/policies/p.tests.yaml").exists());
    }
}

#[test]
fn what_else_lies_behind_a_link_on_the_way_is_no_own_file() {
    for place in [Place::scoped(), Place::scoped().of_nobody()] {
        std::fs::create_dir_all(place.agent("real/out")).unwrap();
        std::fs::rename(place.agent("script.yaml"), place.agent("real/script.yaml")).unwrap();
        symlink("real", place.agent("shelf")).unwrap();
        symlink("shelf/script.yaml", place.agent("script.yaml")).unwrap();
        let command = "echo x >> shelf/script.yaml; echo x >> real/script.yaml; rm -f shelf; ln -sfn evil shelf; mv real r; \
            echo x > real/out/a; echo x > shelf/b; touch tried";
        let (before, child) = place.start(&[("shell", json!({"command": command}))]);
        let text = said(&child.wait_with_output().unwrap());
        assert!(place.agent("tried").exists(), "{text}");
        assert_eq!(place.own(), before, "{text}");
        assert!(place.agent("shelf").symlink_metadata().unwrap().is_symlink());
        assert!(
            place.agent("real/out/a").exists() && place.agent("real/b").exists(),
            "{text}"
        );
    }
}

#[test]
fn a_folder_that_a_link_leads_through_stays() {
    for place in [Place::scoped(), Place::scoped().of_nobody()] {
        for folder in [
            "real",
            "through",
            "past",
            "evil-one/sub",
            "evil-one/real",
            "evil-one/policies",
        ] {
            std::fs::create_dir_all(place.agent(folder)).unwrap();
        }
        std::fs::rename(place.agent("script.yaml"), place.agent("real/script.yaml")).unwrap();
        symlink("through/../real/script.yaml", place.agent("script.yaml")).unwrap();
        let manifest = std::fs::read_to_string(place.agent("claw.yaml")).unwrap();
        let past = manifest.replace("policies/p.yaml", "past/../policies/p.yaml");
        assert_ne!(past, manifest);
        place.manifest(&past);
        let command = "cp evil evil-one/real/script.yaml; cp evil evil-one/policies/p.yaml; \
            mv through t; ln -s evil-one/sub through; rmdir past; mv past p; ln -s evil-one/sub past; echo x > through/a; touch tried";
        let (before, child) = place.start(&[("shell", json!({"command": command}))]);
        let text = said(&child.wait_with_output().unwrap());
        assert!(
            place.agent("tried").exists() && place.agent("through/a").exists(),
            "{text}"
        );
        assert_eq!(place.own(), before, "{text}");
        for folder in ["through", "past"] {
            assert!(
                place.agent(folder).symlink_metadata().unwrap().is_dir(),
                "{folder}: {text}"
            );
        }
    }
}
