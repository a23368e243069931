//! clawk-secrets
