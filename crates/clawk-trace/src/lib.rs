//! clawk-trace
