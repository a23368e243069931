//! Builds a synthetic `/etc`: it has what programs need to start, but nothing about the host's users, services or network.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::pieces::is_folder;
use super::view::{SandboxView, copy_of, open_host};
use crate::child::sys::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};

/// Entries taken from the host, read-only, if they exist: libraries, certificates, service names, alternatives, and files of
/// language runtimes. No accounts, no keys, no personal settings.
const TAKEN: [&str; 19] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates.conf",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "crypto-policies",
    "alternatives",
    "localtime",
    "timezone",
    "services",
    "protocols",
    "mime.types",
    "fonts",
    "perl",
    "terminfo",
    "magic",
];

/// Creates `/etc` in the view.
pub(super) fn create_etc(view: &mut SandboxView) -> io::Result<()> {
    view.create_folder(Path::new("/etc"))?;
    let etc = view.open_path(Path::new("/etc"))?;
    let (uid, gid) = (view.identity.uid, view.identity.gid);
    let write = |name: &str, text: &str| write(&etc, name, text);
    write(
        "passwd",
        &format!(
            "root:x:0:0:root:/:/usr/sbin/nologin\nclawk:x:{uid}:{gid}:clawk:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
        ),
    )?;
    write("group", &format!("root:x:0:\nclawk:x:{gid}:\nnogroup:x:65534:\n"))?;
    write("hosts", "127.0.0.1 localhost clawk\n::1 localhost\n")?;
    write("hostname", "clawk\n")?;
    // No names are resolved in the sandbox. The proxy resolves a name after checking it.
    write(
        "resolv.conf",
        "# names are resolved by the proxy: see HTTPS_PROXY\n",
    )?;
    write(
        "nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    )?;
    let release = Path::new("/usr/lib/os-release");
    if !release.exists() {
        view.notes.record_absent(release);
    } else {
        rustix::fs::symlinkat("../usr/lib/os-release", &etc, "os-release")?;
    }
    rustix::fs::symlinkat("/proc/self/mounts", &etc, "mtab")?;
    let java = of_java();
    for name in TAKEN.into_iter().chain(java.iter().map(String::as_str)) {
        let path = Path::new("/etc").join(name);
        // A link into the system view stays a link in the sandbox: time zones, certificates.
        let link = std::fs::read_link(&path).ok(); // silent-ok: no link
        view.notes.record_link(&path, link.as_deref());
        let target = link.filter(|target| target.starts_with("/usr"));
        if let Some(target) = target {
            view.create_folder(path.parent().unwrap_or(Path::new("/etc")))?;
            rustix::fs::symlinkat(&target, &etc, name)?;
            continue;
        }
        let Ok(source) = open_host(&path) else {
            view.notes.record_absent(&path);
            continue;
        };
        view.notes.record_opened(&path, &source, None)?;
        let copy = copy_of(&source, true)?;
        sys::set_attributes(&copy, true, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, 0)?;
        let folder = is_folder(&source)?;
        view.mount_creating(&copy, &path, folder)?;
    }
    view.readable.push("/etc".into());
    Ok(())
}

/// The folders to which Debian's Java links from `/usr`, for example `java-17-openjdk`. They contain no secrets.
fn of_java() -> Vec<String> {
    let Ok(homes) = std::fs::read_dir("/usr/lib/jvm") else {
        return Vec::new(); // silent-ok: no Java
    };
    let mut names: Vec<String> = homes
        .flatten()
        .filter_map(|home| {
            let name = home.file_name().into_string().ok()?; // silent-ok: none of Debian's
            let rest = name.strip_prefix("java-")?;
            let version = rest.split('-').next().filter(|rest| !rest.contains('.'))?;
            Some(format!("java-{version}-openjdk"))
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

fn write(etc: &OwnedFd, name: &str, text: &str) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(etc, name, flags, Mode::from_raw_mode(0o444))?;
    io::Write::write_all(&mut std::fs::File::from(fd), text.as_bytes())
}
