//! Sandbox (CKP §5.7): where tools run. Everything that is not granted is denied.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::closed::closed_set;

closed_set! {
    /// The isolation of a tool. The variants are ordered; a later one isolates more (R32: clawk serves the requested level or
    /// a stronger one).
    pub enum SandboxLevel {
        None = "none", Process = "process", Wasm = "wasm", Container = "container", Vm = "vm",
    }
}

closed_set! {
    /// The program or mechanism that isolates a tool.
    pub enum SandboxRuntime {
        Docker = "docker", AppleContainer = "apple-container", Wasmtime = "wasmtime",
        Firecracker = "firecracker", Gvisor = "gvisor", Native = "native",
    }
}

closed_set! {
    /// Outbound network. Ordered: a later one may do more.
    pub enum NetworkMode { Deny = "deny", Allowlist = "allowlist", AllowAll = "allow-all" }
}

closed_set! {
    /// View of the file system (R33). Ordered: a later one may do more.
    pub enum FilesystemMode { Deny = "deny", ReadOnly = "read-only", Scoped = "scoped", Full = "full" }
}

closed_set! {
    /// Rights on a mounted path.
    pub enum MountPermission { Ro = "ro", Rw = "rw" }
}

closed_set! {
    /// The way in which a tool gets secrets (R37).
    pub enum SecretInjection { HostBoundary = "host-boundary", Environment = "environment", FileMount = "file-mount" }
}

closed_set! {
    /// Shell commands. Ordered: a later one may do more.
    pub enum ShellMode { Deny = "deny", Restricted = "restricted", Full = "full" }
}

/// The Sandbox primitive: where tools run, and with which rights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sandbox {
    /// Name; `sandbox` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering and policy.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How strongly tools are isolated. A level that this machine can't give is refused, never replaced by a weaker one.
    pub level: SandboxLevel,
    /// The runtime as given; see [`Sandbox::runtime`] for the one in use.
    #[serde(default)]
    pub runtime: Option<SandboxRuntime>,
    /// What a tool is granted. Everything else is denied.
    #[serde(default)]
    pub capabilities: Capabilities,
    /// Resource limits of one call.
    #[serde(default)]
    pub resource_limits: ResourceLimits,
}

impl Sandbox {
    /// The given runtime, or the default one of the level (runtime profile §1).
    #[must_use]
    pub fn runtime(&self) -> SandboxRuntime {
        self.runtime.unwrap_or(match self.level {
            SandboxLevel::None | SandboxLevel::Process => SandboxRuntime::Native,
            SandboxLevel::Wasm => SandboxRuntime::Wasmtime,
            SandboxLevel::Container => SandboxRuntime::Docker,
            SandboxLevel::Vm => SandboxRuntime::Firecracker,
        })
    }
}

/// The rights of tools in the sandbox. Every part denies by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Capabilities {
    /// Which hosts a tool can reach.
    pub network: NetworkSettings,
    /// Which files a tool sees.
    pub filesystem: FilesystemSettings,
    /// How secrets reach a tool, and the scan that keeps them from leaving.
    pub secrets: Secrets,
    /// Which command lines a tool may run.
    pub shell: ShellSettings,
}

/// Which hosts a tool can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSettings {
    /// How much is granted; `deny` by default.
    pub mode: NetworkMode,
    /// Hosts for the mode `allowlist`: `example.com`, or `*.example.com` for every subdomain; a port is optional.
    pub allowed_hosts: Vec<String>,
    /// Guards against requests into private networks.
    pub ssrf_protection: SsrfProtection,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            mode: NetworkMode::Deny,
            allowed_hosts: Vec::new(),
            ssrf_protection: SsrfProtection::default(),
        }
    }
}

/// Guards against requests into private networks; all on by default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SsrfProtection {
    /// Turns the whole guard on or off.
    pub enabled: bool,
    /// Refuses addresses of private networks.
    pub block_private_ips: bool,
    /// Connects to exactly the address that was checked.
    pub dns_pinning: bool,
}

impl Default for SsrfProtection {
    fn default() -> Self {
        Self {
            enabled: true,
            block_private_ips: true,
            dns_pinning: true,
        }
    }
}

/// File access (R33).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilesystemSettings {
    /// How much is granted; `deny` by default.
    pub mode: FilesystemMode,
    /// Folders and files that tools see.
    pub mount_paths: Vec<MountSettings>,
    /// Paths and patterns that no tool can read or change, even below a mount.
    pub denied_paths: Vec<String>,
}

impl Default for FilesystemSettings {
    fn default() -> Self {
        Self {
            mode: FilesystemMode::Deny,
            mount_paths: Vec::new(),
            denied_paths: Vec::new(),
        }
    }
}

/// A path made visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountSettings {
    /// A path, relative to the working directory.
    pub path: String,
    /// `ro`: read only. `rw`: read and write.
    pub permissions: MountPermission,
}

/// How tools get secrets (R37).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// The way of injection; `host-boundary` by default.
    pub injection: SecretInjection,
    /// The cipher for stored secrets, as given.
    pub encryption: Option<String>,
    /// Scans what leaves the sandbox for secrets.
    pub leak_detection: LeakDetection,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            injection: SecretInjection::HostBoundary,
            encryption: None,
            leak_detection: LeakDetection::default(),
        }
    }
}

/// Scans what leaves the sandbox for secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeakDetection {
    /// Whether the scan is on; `true` by default.
    pub enabled: bool,
    /// The smallest number of secret patterns (R36); 22 by default.
    pub patterns: u64,
}

impl Default for LeakDetection {
    fn default() -> Self {
        Self {
            enabled: true,
            patterns: 22,
        }
    }
}

/// Shell commands that a tool may run (R35).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShellSettings {
    /// How much is granted; `deny` by default.
    pub mode: ShellMode,
    /// Commands to refuse; `*` matches any text.
    pub blocked_commands: Vec<String>,
    /// Regular expressions; clawk refuses a command line in which one is found.
    pub blocked_patterns: Vec<String>,
}

impl Default for ShellSettings {
    fn default() -> Self {
        Self {
            mode: ShellMode::Deny,
            blocked_commands: Vec::new(),
            blocked_patterns: Vec::new(),
        }
    }
}

/// Resource limits of one execution; `None` means the runtime's own limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceLimits {
    /// Memory of all processes together, in MiB.
    pub memory_mb: Option<u64>,
    /// The CPU weight; 1024 is the weight of one core (R36).
    pub cpu_shares: Option<u64>,
    /// The largest number of processes and threads (R36).
    pub max_processes: Option<u64>,
    /// The largest number of open files per process.
    pub max_open_files: Option<u64>,
    /// The time limit, milliseconds. At the limit all processes are ended.
    pub timeout_ms: Option<u64>,
    /// The largest output, bytes; clawk discards the rest.
    pub max_output_bytes: Option<u64>,
}
