//! clawk-manifest
