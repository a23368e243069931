//! clawk-providers
