//! clawk-server
