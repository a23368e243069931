//! What a pass that seals everything with the current key could not seal. One value that can't be opened stops no other.

use std::fmt::Display;

/// Faults that a report names one by one; the rest is counted.
const MAX_FAULTS: usize = 1_000;

/// One value that stays as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResealFault {
    /// A path, or a place in the database.
    pub value: String,
    /// Why it can't be sealed. Never holds a key or a text.
    pub why: String,
}

/// What a pass could not seal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResealReport {
    faults: Vec<ResealFault>,
    unnamed: u64,
}

impl ResealReport {
    /// Notes a value that stays as it was.
    pub fn add_fault(&mut self, value: impl Display, why: impl Display) {
        if self.faults.len() >= MAX_FAULTS {
            self.unnamed += 1;
            return;
        }
        self.faults.push(ResealFault {
            value: value.to_string(),
            why: why.to_string(),
        });
    }

    /// Notes the value where its sealing failed.
    pub fn add_outcome<E: Display>(&mut self, value: impl Display, outcome: Result<(), E>) {
        if let Err(error) = outcome {
            self.add_fault(value, error);
        }
    }

    /// Takes over what another pass could not seal.
    pub fn add_report(&mut self, other: Self) {
        self.unnamed += other.unnamed;
        for fault in other.faults {
            self.add_fault(fault.value, fault.why);
        }
    }

    /// The values that stay as they were, at most 1,000.
    #[must_use]
    pub fn faults(&self) -> &[ResealFault] {
        &self.faults
    }

    /// How many values stay as they were.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        u64::try_from(self.faults.len())
            .unwrap_or(u64::MAX)
            .saturating_add(self.unnamed)
    }

    /// Everything is sealed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.fault_count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::ResealReport;

    #[test]
    fn a_report_names_a_bounded_number_of_faults_and_counts_all() {
        let mut report = ResealReport::default();
        assert!(report.is_complete());
        for n in 0..1_005 {
            report.add_fault(n, "damaged");
        }
        let mut all = ResealReport::default();
        all.add_outcome("a", Err::<(), _>("b"));
        all.add_outcome("fine", Ok::<(), &str>(()));
        all.add_report(report);
        assert_eq!(all.faults().len(), 1_000);
        assert_eq!(all.fault_count(), 1_006);
        assert!(!all.is_complete());
    }
}
