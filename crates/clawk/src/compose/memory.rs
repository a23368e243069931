//! Where stores of memory lie: in the state's database, in folders below `memory` in the state, on a PostgreSQL server.

use std::sync::Arc;

use clawk_kernel::ports::Memory;
use clawk_memory::{Stores, is_on_postgres};

use super::{Blueprint, Origin, own};
use crate::state::kept::StateDir;

impl Blueprint {
    /// Every store's back end.
    pub(super) fn stores(&self, state: &StateDir) -> Arc<dyn Memory> {
        let outside = !matches!(self.origin, Origin::Wire(_));
        let files = own::folders(&self.config, state.path(), outside);
        let mut stores = Stores::new(state.memory(), files);
        if self.wants_postgres() {
            stores = stores.with_postgres(self.postgres());
        }
        Arc::new(stores)
    }

    fn wants_postgres(&self) -> bool {
        let stores = self.manifest.memory.iter().flat_map(|memory| &memory.stores);
        stores.into_iter().any(is_on_postgres)
    }

    /// What keeps the stores from being served here, as far as a look at the configuration can tell: nothing is connected, and no
    /// secret is asked for.
    pub(super) fn memory_faults(&self) -> Vec<String> {
        if !self.wants_postgres() {
            return Vec::new();
        }
        self.postgres_fault().err().into_iter().collect()
    }
}

#[cfg(not(feature = "postgres"))]
impl Blueprint {
    fn postgres(&self) -> Result<Arc<dyn Memory>, String> {
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

    use clawk_postgres::{Database, Options, PgMemory, TlsMode};
    use clawk_secrets::Secret;

    use super::{Arc, Blueprint, Memory};
    use crate::config::PostgresTls;

    /// Where the configuration says where the server is.
    const URL: &str = "[postgres] url";

    impl Blueprint {
        /// The server is connected to at the first question.
        pub(super) fn postgres(&self) -> Result<Arc<dyn Memory>, String> {
            let secret = self.config.settings.postgres.secret_ref.as_deref();
            let resolve = |name| self.resolver.resolve(name).map_err(|error| error.to_string());
            let secret = secret.map(resolve).transpose()?;
            let options = match (self.server_url()?, secret) {
                (Some(url), password) => Options {
                    password,
                    ..self.options(url)
                },
                (None, Some(url)) => self.options(url),
                (None, None) => return Err(nowhere()),
            };
            let database = Database::new(options, self.resolver.env()).map_err(|error| error.to_string())?;
            Ok(Arc::new(PgMemory::new(database, &self.manifest.metadata.name)))
        }

        pub(super) fn postgres_fault(&self) -> Result<(), String> {
            match (self.server_url()?, &self.config.settings.postgres.secret_ref) {
                (Some(url), _) => {
                    let made = Database::new(self.options(url), self.resolver.env());
                    made.map(drop).map_err(|error| error.to_string())
                }
                (None, Some(_)) => Ok(()), // the URL is the secret
                (None, None) => Err(nowhere()),
            }
        }

        fn server_url(&self) -> Result<Option<Secret>, String> {
            let url = self.config.settings.postgres.url.as_ref();
            url.map(|url| Ok(Secret::new(URL, url.plain()?))).transpose()
        }

        fn options(&self, url: Secret) -> Options {
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
                pgvector: given.pgvector,
                read_only: false,
            }
        }
    }

    fn nowhere() -> String {
        "`[postgres]` in `clawk.toml` names no server: set `url` (example: `postgres://clawk@db.example.com/clawk`), and `secret_ref` \
         for the password"
            .to_owned()
    }
}
