//! clawk-policy
