//! clawk-tools
