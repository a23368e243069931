//! Level `process` on a kernel as distributions ship it, with control groups of version 2: Debian's boots in qemu, with this very
//! clawk on its disk. What the machine printed is judged; `kernel.sh` is what it does. Kernels differ in what they refuse, and the
//! one that tests run on is seldom the one that users have.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clawk_sandbox::vm;

use crate::parts::part;
use crate::process::{Done, finish};

/// Emulated, on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(300);

/// Programs of busybox that the script and the tools start.
const APPLETS: [&str; 18] = [
    "sh", "cat", "sleep", "id", "mkdir", "rm", "mv", "ln", "ls", "grep", "ps", "find", "true", "echo",
    "chown", "mount", "su", "test",
];

/// The disk: a tiny system with merged folders, this clawk and what it links to, and the script.
fn disk(folder: &Path) -> PathBuf {
    let root = folder.join("root");
    for name in ["usr/bin", "proc", "sys", "dev", "tmp", "etc", "root", "home/user"] {
        fs::create_dir_all(root.join(name)).expect("a folder");
    }
    for name in ["bin", "lib", "lib64", "sbin"] {
        fs::create_dir_all(root.join("usr").join(name)).expect("a folder");
        symlink(format!("usr/{name}"), root.join(name)).expect("a link");
    }
    fs::copy("/bin/busybox", root.join("usr/bin/busybox")).expect("busybox-static is needed");
    for name in APPLETS {
        symlink("busybox", root.join("usr/bin").join(name)).expect("a link");
    }
    let clawk = env!("CARGO_BIN_EXE_clawk");
    run(program("strip")
        .args(["-o"])
        .arg(root.join("usr/bin/clawk"))
        .arg(clawk));
    for line in run(program("ldd").arg(clawk)).lines() {
        let Some(library) = line.split_whitespace().find(|word| word.starts_with('/')) else {
            continue;
        };
        // With merged folders, `/lib` is `/usr/lib`; both are the same here.
        let place = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(place.parent().expect("a parent")).expect("a folder");
        fs::copy(library, place).expect("a library");
    }
    let users = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n";
    fs::write(root.join("etc/passwd"), users).expect("written");
    fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n").expect("written");
    script(&root.join("script"), include_str!("kernel.sh"));
    let image = folder.join("disk");
    let mut make = program("/usr/sbin/mke2fs");
    run(make
        .args(["-q", "-t", "ext4", "-d"])
        .arg(&root)
        .arg(&image)
        .arg("900M"));
    image
}

/// What the kernel starts with: the disk's drivers.
fn initrd(folder: &Path) -> PathBuf {
    let tree = folder.join("initrd");
    fs::create_dir_all(tree.join("drivers")).expect("a folder");
    for name in ["dev", "new"] {
        fs::create_dir(tree.join(name)).expect("a folder");
    }
    fs::copy("/bin/busybox", tree.join("busybox")).expect("busybox-static is needed");
    let modules = part("kernel").join("lib/modules");
    let release = fs::read_dir(&modules)
        .expect("modules")
        .flatten()
        .next()
        .expect("one kernel");
    let drivers = vm::load_order(&release.path(), &["virtio_pci", "virtio_blk", "ext4"]);
    for (at, file) in drivers.expect("the disk's drivers").iter().enumerate() {
        fs::copy(file, tree.join(format!("drivers/{at:02}.ko"))).expect("a driver");
    }
    script(
        &tree.join("init"),
        "#!/busybox sh\nb=/busybox\n$b mount -t devtmpfs dev /dev\nfor m in /drivers/*; do $b insmod $m; done\n\
         i=0; while [ ! -b /dev/vda ] && [ $i -lt 100 ]; do $b usleep 100000; i=$((i+1)); done\n\
         $b mount -t ext4 /dev/vda /new\nexec $b switch_root /new /script\n",
    );
    let archive = folder.join("initrd.cpio");
    let line = format!("find . | /bin/busybox cpio -o -H newc > {}", archive.display());
    run(program("sh").args(["-c", &line]).current_dir(&tree));
    archive
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test makes a machine with the system's own programs"
)]
fn program(name: &str) -> Command {
    Command::new(name)
}

fn run(command: &mut Command) -> String {
    finish(command, PATIENCE).ok().stdout
}

/// What one of the two saw, by the script's headings.
struct Seen<'a>(&'a str);

impl Seen<'_> {
    fn of(&self, heading: &str) -> &str {
        let (_, rest) = self
            .0
            .split_once(&format!("== {heading}\n"))
            .unwrap_or_else(|| panic!("no `{heading}` in {}", self.0));
        rest.split("== ").next().unwrap_or(rest)
    }

    /// What a box of level `process` must hold here, whoever asks.
    fn holds(&self) {
        let doctor = self.of("doctor");
        for held in [
            "landlock:abi",
            "cgroup2:memory",
            "cgroup2:pids",
            "cgroup2:cpu",
            "seccomp",
        ] {
            assert!(doctor.contains(held), "{held}: {doctor}");
        }
        assert!(
            self.of("memory").contains("killed for using more than 64 MiB"),
            "{}",
            self.of("memory")
        );
        let many = self.of("processes");
        assert!(many.contains("killed for starting more than 20"), "{many}");
        let late = self.of("timeout");
        assert!(late.contains("ended after 3000 ms"), "{late}");
        assert!(!late.lines().any(|line| line.ends_with("sleep 1234")), "{late}");
        let denied = self.of("denied");
        assert!(
            !denied.contains("CANARY") && denied.contains("in/deep/key"),
            "{denied}"
        );
        let written = self.of("written");
        assert!(
            written.contains("done\n") && written.contains("plain\n"),
            "{written}"
        );
        assert!(
            self.of("read").trim_end().ends_with("\nplain"),
            "{}",
            self.of("read")
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_box_holds_on_a_distributions_kernel_with_groups_of_version_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, initrd) = (disk(folder.path()), initrd(folder.path()));
    let mut machine = program("qemu-system-x86_64");
    machine
        .args([
            "-m",
            "2048",
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ])
        .args(["-append", "console=ttyS0 quiet panic=-1", "-kernel"])
        .arg(part("vmlinuz"))
        .arg("-initrd")
        .arg(initrd)
        .arg("-drive")
        .arg(format!("file={},format=raw,if=virtio", disk.display()));
    let Done { stdout, stderr, .. } = finish(&mut machine, PATIENCE);
    let said = stdout.replace('\r', "");
    assert!(said.contains("== end"), "{said}{stderr}");
    let (_, tried) = said.split_once("==== root\n").expect("the root's part");
    let (root, user) = tried.split_once("==== user\n").expect("the user's part");
    Seen(root).holds();
    Seen(user).holds();
    assert_eq!(Seen(user).of("groups").trim(), "", "no group is left");
    // What root's tool wrote is the folder's owner's, and what the user's tool wrote is the user's.
    assert!(Seen(root).of("written").contains(" 0        0 "), "{root}");
    assert!(Seen(user).of("written").contains(" 1000     1000 "), "{user}");
}
