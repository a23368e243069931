//! The memory stores: in the state's database, in folders below `memory` in the state, on a PostgreSQL or a Qdrant server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clawk_kernel::ports::{BoxFuture, Memory, MemoryInspector, Scope};
use clawk_kernel::store_ranking_fault;
use clawk_manifest::model::Store;
use clawk_memory::{
    CustomMemory, CustomStoreServer, MemoryStores, QdrantMemory, QdrantOptions, declared_store_fault,
    is_custom, is_on_postgres, is_on_qdrant,
};
use clawk_proto::Digest;
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::{NO_KEY, SealKey, SealKeyring};
use clawk_secrets::Secret;
use clawk_tools::{MemoryServer, ToolConfig};
use serde_json::{Map, Value};

use super::{Origin, ResolvedConfig, own};
use crate::config::MemoryStore;
use crate::peers::kept_key;
use crate::state::kept::{self, Keys, StateDir};

/// File in the state directory: the key that seals the provenance of entries stored on an MCP server.
const MARKS: &str = "keys/memory";

/// A tool server as the memory port uses it.
#[derive(Debug)]
struct McpMemoryKeeper(MemoryServer);

impl CustomStoreServer for McpMemoryKeeper {
    fn call<'a>(
        &'a self,
        tool: &'static str,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'a, Result<Value, String>> {
        Box::pin(self.0.call(tool, arguments))
    }
}

impl ResolvedConfig {
    /// Builds every store's back end.
    pub(super) fn memory_stores(&self, state: &StateDir) -> Arc<dyn Memory> {
        let outside = !matches!(self.origin, Origin::Wire(_));
        let vault = state.vault().cloned().map(Arc::new);
        let files = own::folder_memory(&self.config, state.path(), outside, vault.clone());
        let mut stores = MemoryStores::new(state.memory(), files).untouched_outside(self.dry);
        if self.wants_postgres() {
            stores = stores.with_postgres(self.postgres_memory(vault));
        }
        if self.wants_qdrant() {
            let qdrant = self.qdrant_memory(self.qdrant_key());
            stores = stores.with_qdrant(qdrant.map(|qdrant| Arc::new(qdrant) as Arc<dyn Memory>));
        }
        if self.declared_stores().any(is_custom) {
            let custom = self.custom_memory(state.path());
            stores = stores.with_custom(custom.map(|custom| Arc::new(custom) as Arc<dyn Memory>));
        }
        Arc::new(stores)
    }

    /// Builds the stores on MCP servers, without starting a server.
    fn custom_memory(&self, state: &Path) -> Result<CustomMemory, String> {
        let host = self
            .tool_host(None, Some(state))
            .map_err(|faults| faults.join("; "))?;
        let mut keepers = BTreeMap::new();
        for store in self.declared_stores().filter(|store| is_custom(store)) {
            let Some(given) = self.config.settings.memory.stores.get(&store.name) else {
                continue;
            };
            let keeper = match given.server_uri() {
                Ok(None) => continue,
                Ok(Some(uri)) => {
                    let config = ToolConfig {
                        env: given.env.clone(),
                        secret_env: given.secret_env.clone(),
                        secret_headers: given.secret_headers.clone(),
                        read_paths: given.read_paths.clone(),
                        ..ToolConfig::default()
                    };
                    MemoryServer::new(
                        &self.manifest,
                        &store.name,
                        &uri,
                        config,
                        &host,
                        given.answer_timeout(),
                    )
                    .map(|server| Arc::new(McpMemoryKeeper(server)) as Arc<dyn CustomStoreServer>)
                }
                Err(why) => Err(format!("`[memory.{}] server`: {why}", store.name)),
            };
            keepers.insert(store.name.clone(), keeper);
        }
        let key = kept_key(state, MARKS).map_err(|error| format!("{error:#}"))?;
        let key = SealKey::from_hex(&Digest(key).to_hex()).map_err(|error| error.to_string())?;
        Ok(CustomMemory::new(keepers, SealKeyring::new(key)))
    }

    /// Builds the stores on servers, with their inspectors. Nothing is connected yet.
    ///
    /// # Errors
    /// The reason why a store can't be used here.
    pub(crate) fn on_servers(&self, state: &Path) -> Result<Vec<(Store, Arc<dyn MemoryInspector>)>> {
        let made = |made: Result<Arc<dyn MemoryInspector>, String>| made.map_err(anyhow::Error::msg);
        let mut found = Vec::new();
        let (mut postgres, mut qdrant, mut custom) = (None, None, None);
        for store in self.declared_stores() {
            let slot = if is_on_postgres(store) {
                &mut postgres
            } else if is_on_qdrant(store) {
                &mut qdrant
            } else if is_custom(store) {
                &mut custom
            } else {
                continue;
            };
            let kept: &Arc<dyn MemoryInspector> = match slot {
                Some(kept) => kept,
                None => slot.insert(if is_on_postgres(store) {
                    let vault = self.encryption_keys()?.map(|keys| Arc::new(keys.vault));
                    made(self.inspected_postgres(vault))?
                } else if is_on_qdrant(store) {
                    let qdrant = self.qdrant_memory(self.qdrant_key());
                    made(qdrant.map(|qdrant| Arc::new(qdrant) as Arc<dyn MemoryInspector>))?
                } else {
                    let custom = self.custom_memory(state);
                    made(custom.map(|custom| Arc::new(custom) as Arc<dyn MemoryInspector>))?
                }),
            };
            found.push((store.clone(), Arc::clone(kept)));
        }
        Ok(found)
    }

    /// Returns the scopes of a store that the manifest names.
    pub(crate) fn scopes_of(&self, store: &Store) -> Vec<String> {
        let identities = std::iter::once(&self.manifest.identity.name).chain(self.identities.keys());
        let doors = ["", "cli", "rpc"].map(str::to_owned);
        let channels = self.manifest.channels.iter().map(|channel| channel.name.clone());
        let channels: Vec<String> = doors.into_iter().chain(channels).collect();
        let mut parts = Vec::new();
        for identity in identities {
            for channel in &channels {
                let place = Scope {
                    identity: identity.clone(),
                    channel: channel.clone(),
                };
                let part = place.part_name(store);
                if !parts.contains(&part) {
                    parts.push(part);
                }
            }
        }
        parts
    }

    fn declared_stores(&self) -> impl Iterator<Item = &Store> {
        self.manifest.memory.iter().flat_map(|memory| &memory.stores)
    }

    fn encrypted_stores(&self) -> BTreeSet<String> {
        let encrypted = self.declared_stores().filter(|store| store.encryption);
        encrypted.map(|store| store.name.clone()).collect()
    }

    /// Returns the key of encrypted stores; `None`: no store is encrypted, or no key is named, and then each encrypted store is
    /// refused.
    ///
    /// # Errors
    /// The secret is missing or is not a key. The error names the stores.
    pub(super) fn encryption_keys(&self) -> Result<Option<Keys>> {
        let stores = self.encrypted_stores();
        let Some(reference) = self.config.settings.memory.encryption_key.as_deref() else {
            return Ok(None);
        };
        if stores.is_empty() {
            return Ok(None);
        }
        let resolve = || -> Result<SealKey> {
            let secret = self.resolver.resolve(reference)?;
            Ok(SealKey::from_hex(secret.expose())?)
        };
        let names: Vec<String> = stores.iter().map(|name| format!("`{name}`")).collect();
        let key = resolve().with_context(|| {
            format!(
                "the stores {} are encrypted, and `[memory] encryption_key = \"{reference}\"` gives no key",
                names.join(", ")
            )
        })?;
        kept::remember_key(reference, &key);
        Ok(Some(Keys {
            vault: SealKeyring::new(key),
            reference: reference.to_owned(),
            stores,
        }))
    }

    fn wants_qdrant(&self) -> bool {
        self.declared_stores().any(is_on_qdrant)
    }

    fn qdrant_key(&self) -> Result<Option<Secret>, String> {
        let reference = self.config.settings.qdrant.secret_ref.as_deref();
        let resolve = |name| self.resolver.resolve(name).map_err(|error| error.to_string());
        reference.map(resolve).transpose()
    }

    /// Builds the Qdrant back end. It connects at the first request.
    fn qdrant_memory(&self, key: Result<Option<Secret>, String>) -> Result<QdrantMemory, String> {
        let given = &self.config.settings.qdrant;
        let Some(url) = given.url.clone() else {
            return Err("`[qdrant]` in `clawk.toml` names no server: set `url` (example: `http://127.0.0.1:6333`), and `secret_ref` for its \
                        API key"
                .to_owned());
        };
        let options = QdrantOptions {
            url,
            api_key: key?,
            prefix: given.prefix.clone(),
            connect_timeout: Duration::from_millis(given.connect_timeout_ms),
            operation_timeout: Duration::from_millis(given.operation_timeout_ms),
        };
        QdrantMemory::new(&options, &self.manifest.metadata.name, self.resolver.env())
    }

    fn wants_postgres(&self) -> bool {
        self.declared_stores().any(is_on_postgres)
    }

    /// Returns why stores can't be used here, as far as the configuration shows. Nothing is connected, and no secret is asked for.
    pub(super) fn memory_faults(&self) -> Vec<String> {
        let keyless = self.config.settings.memory.encryption_key.is_none();
        let encrypted = self.encrypted_stores().into_iter().filter(|_| keyless);
        let mut faults: Vec<String> = encrypted
            .map(|name| format!("store `{name}`: {NO_KEY}"))
            .collect();
        faults.extend(self.declared_stores().filter_map(|store| {
            let fault = declared_store_fault(store).or_else(|| store_ranking_fault(store))?;
            Some(format!("store `{}`: {fault}", store.name))
        }));
        if self.wants_postgres() {
            faults.extend(self.postgres_fault().err());
        }
        if self.wants_qdrant() {
            // Assumes that there is a key, which is not asked for here.
            let key = self.config.settings.qdrant.secret_ref.as_ref();
            let key = key.map(|name| Secret::new(name.as_str(), "unread"));
            faults.extend(self.qdrant_memory(Ok(key)).err());
        }
        for store in self.declared_stores().filter(|store| is_custom(store)) {
            let given = self.config.settings.memory.stores.get(&store.name);
            let server = given.map_or(Ok(None), MemoryStore::server_uri);
            let why = match server {
                Ok(Some(_)) => continue,
                Ok(None) => {
                    "it names no MCP server (`stdio:///…` or a URL) that offers `store`, `query` and `forget`"
                        .to_owned()
                }
                Err(why) => why,
            };
            faults.push(format!(
                "store `{0}`: `[memory.{0}] server` of `clawk.toml`: {why}",
                store.name
            ));
        }
        faults
    }
}

#[cfg(not(feature = "postgres"))]
impl ResolvedConfig {
    #[expect(
        clippy::unused_async,
        reason = "the build with PostgreSQL waits for its server"
    )]
    pub(crate) async fn seal_anew(
        &self,
        _vault: Arc<SealKeyring>,
        _report: &mut ResealReport,
    ) -> Result<Vec<String>> {
        if self
            .declared_stores()
            .any(|store| store.encryption && is_on_postgres(store))
        {
            self.postgres_fault().map_err(anyhow::Error::msg)?;
        }
        Ok(Vec::new())
    }

    fn postgres_memory(&self, _vault: Option<Arc<SealKeyring>>) -> Result<Arc<dyn Memory>, String> {
        self.postgres_fault()?;
        Err("PostgreSQL is left out".to_owned())
    }

    fn inspected_postgres(
        &self,
        _vault: Option<Arc<SealKeyring>>,
    ) -> Result<Arc<dyn MemoryInspector>, String> {
        self.postgres_fault()?;
        Err("PostgreSQL is left out".to_owned())
    }

    fn postgres_fault(&self) -> Result<(), String> {
        let _read = self.config.settings.postgres.url.as_ref();
        Err("this build of clawk leaves out PostgreSQL: build with `cargo build --release --features postgres`, or use a shipped \
             build (`cargo xtask dist`)"
            .to_owned())
    }
}

#[cfg(feature = "postgres")]
mod connected {
    use std::time::Duration;

    use clawk_postgres::{Options, PgDatabase, PgMemory, TlsMode};
    use clawk_secrets::Secret;

    use super::{
        Arc, Memory, MemoryInspector, ResealReport, ResolvedConfig, Result, SealKeyring, Store,
        is_on_postgres,
    };
    use crate::config::PostgresTls;

    /// The setting with the server's address.
    const URL: &str = "[postgres] url";

    impl ResolvedConfig {
        /// Builds the PostgreSQL back end. It connects at the first request.
        pub(super) fn postgres_memory(
            &self,
            vault: Option<Arc<SealKeyring>>,
        ) -> Result<Arc<dyn Memory>, String> {
            Ok(Arc::new(self.on_server(vault)?))
        }

        pub(super) fn inspected_postgres(
            &self,
            vault: Option<Arc<SealKeyring>>,
        ) -> Result<Arc<dyn MemoryInspector>, String> {
            Ok(Arc::new(self.on_server(vault)?))
        }

        fn on_server(&self, vault: Option<Arc<SealKeyring>>) -> Result<PgMemory, String> {
            let secret = self.config.settings.postgres.secret_ref.as_deref();
            let resolve = |name| self.resolver.resolve(name).map_err(|error| error.to_string());
            let secret = secret.map(resolve).transpose()?;
            let options = match (self.server_url()?, secret) {
                (Some(url), password) => Options {
                    password,
                    ..self.postgres_options(url)
                },
                (None, Some(url)) => self.postgres_options(url),
                (None, None) => return Err(no_server_message()),
            };
            let database =
                PgDatabase::new(options, self.resolver.env()).map_err(|error| error.to_string())?;
            Ok(PgMemory::new(database, &self.manifest.metadata.name).with_vault(vault))
        }

        pub(super) fn postgres_fault(&self) -> Result<(), String> {
            match (self.server_url()?, &self.config.settings.postgres.secret_ref) {
                (Some(url), _) => {
                    let made = PgDatabase::new(self.postgres_options(url), self.resolver.env());
                    made.map(drop).map_err(|error| error.to_string())
                }
                (None, Some(_)) => Ok(()), // the URL is the secret
                (None, None) => Err(no_server_message()),
            }
        }

        /// Seals the encrypted stores on the server with the current key of this vault; returns the names of those that are sealed. One
        /// that can't be sealed stops no other; the report names it.
        ///
        /// # Errors
        /// The manifest names no server.
        pub(crate) async fn seal_anew(
            &self,
            vault: Arc<SealKeyring>,
            report: &mut ResealReport,
        ) -> Result<Vec<String>> {
            let stores = self
                .declared_stores()
                .filter(|store| store.encryption && is_on_postgres(store));
            let stores: Vec<&Store> = stores.collect();
            if stores.is_empty() {
                return Ok(Vec::new());
            }
            let memory = self.on_server(Some(vault)).map_err(anyhow::Error::msg)?;
            let mut sealed = Vec::new();
            for store in stores {
                match memory.seal_anew(store).await {
                    Ok(()) => sealed.push(store.name.clone()),
                    Err(error) => {
                        report.add_fault(format!("the store `{}` on the server", store.name), error)
                    }
                }
            }
            Ok(sealed)
        }

        fn server_url(&self) -> Result<Option<Secret>, String> {
            let url = self.config.settings.postgres.url.as_ref();
            url.map(|url| Ok(Secret::new(URL, url.connection_url()?)))
                .transpose()
        }

        fn postgres_options(&self, url: Secret) -> Options {
            let given = &self.config.settings.postgres;
            Options {
                url,
                password: None,
                tls: match given.tls {
                    PostgresTls::VerifyFull => TlsMode::VerifyFull,
                    PostgresTls::VerifyCa => TlsMode::VerifyCa,
                    PostgresTls::Disable => TlsMode::Disable,
                },
                ca_file: given.ca_file.clone(),
                schema: given.schema.clone(),
                connections: given.connections,
                connect_timeout: Duration::from_millis(given.connect_timeout_ms),
                operation_timeout: Duration::from_millis(given.operation_timeout_ms),
                idle_timeout: None,
                pgvector: given.pgvector,
                read_only: false,
            }
        }
    }

    fn no_server_message() -> String {
        "`[postgres]` in `clawk.toml` names no server: set `url` (example: `postgres://clawk@db.example.com/clawk`), and `secret_ref` \
         for the password"
            .to_owned()
    }
}
