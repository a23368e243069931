//! The program's own log as JSON objects, beside the activity log: one object for each message of `tracing`.

use std::fmt;

use clawk_kernel::time::{Clock as _, SystemClock};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes each message as one JSON object, with the keys of the activity log.
#[derive(Debug, Default)]
pub(crate) struct JsonLogFormatter(SystemClock);

impl<S, N> FormatEvent<S, N> for JsonLogFormatter
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = JsonFields(Map::new());
        event.record(&mut fields);
        let meta = event.metadata();
        let JsonFields(mut object) = fields;
        object.insert("time".to_owned(), json!(self.0.now().to_string()));
        object.insert(
            "level".to_owned(),
            json!(meta.level().as_str().to_ascii_lowercase()),
        );
        object.insert("target".to_owned(), json!(meta.target()));
        writeln!(to, "{}", Value::Object(object))
    }
}

/// The fields of one message.
struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn put(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().to_owned(), value);
    }
}

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, json!(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, json!(value));
    }
}
