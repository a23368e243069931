use tokio::io::AsyncReadExt as _;

use super::{MAX_LINES, ThrottledReader};

#[tokio::test(start_paused = true)]
async fn a_flood_is_read_at_a_bounded_rate_and_whole() {
    let flood = vec![b'\n'; MAX_LINES * 8];
    let began = tokio::time::Instant::now();
    let mut reader = ThrottledReader::new(flood.as_slice());
    let mut read = 0;
    let mut piece = vec![0; MAX_LINES];
    loop {
        match reader.read(&mut piece).await.expect("read") {
            0 => break,
            more => read += more,
        }
    }
    assert_eq!(read, flood.len(), "nothing is lost");
    assert!(began.elapsed().as_millis() >= 1_500, "{:?}", began.elapsed());
}
