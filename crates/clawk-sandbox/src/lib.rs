//! clawk-sandbox
