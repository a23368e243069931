//! clawk-store
