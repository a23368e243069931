//! What a recording is and how long it is, by its bytes alone. Its length bounds what is paid for it, so nothing that its sender or the
//! platform claims counts; a format whose length can't be read from its bytes is not understood.

use crate::kinds;

/// A rate of Opus granules, by RFC 7845.
const OPUS_RATE: u64 = 48_000;
/// Boxes of an MP4 file that are looked at.
const MAX_BOXES: usize = 10_000;

/// The media type that a speech server is told, and the length in milliseconds.
pub(crate) fn measure_recording(data: &[u8]) -> Option<(&'static str, u64)> {
    let (kind, ms) = match kinds::detect_type(data)? {
        "audio/ogg" => ("audio/ogg", ogg_length(data)?),
        "audio/wav" => ("audio/wav", wav_length(data)?),
        "video/webm" => ("audio/webm", webm_length(data)?),
        "video/mp4" => ("audio/mp4", mp4_length(data)?),
        "audio/mpeg" => ("audio/mpeg", mp3_length(data)?),
        _ => return None,
    };
    (ms > 0).then_some((kind, ms))
}

fn read_u32_le(data: &[u8], at: usize) -> Option<u64> {
    let four = data.get(at..at + 4)?.try_into().ok()?; // silent-ok: there are four
    Some(u64::from(u32::from_le_bytes(four)))
}

fn read_u32_be(data: &[u8], at: usize) -> Option<u64> {
    let four = data.get(at..at + 4)?.try_into().ok()?; // silent-ok: there are four
    Some(u64::from(u32::from_be_bytes(four)))
}

fn read_u64_be(data: &[u8], at: usize) -> Option<u64> {
    Some(read_u32_be(data, at)? << 32 | read_u32_be(data, at + 4)?)
}

fn wav_length(data: &[u8]) -> Option<u64> {
    let bytes = u64::try_from(data.len()).ok()?.saturating_sub(44); // silent-ok: no file is so large
    // A header that claims a rate that no recorder has tells nothing.
    let second = read_u32_le(data, 28)?;
    (4_000..=800_000)
        .contains(&second)
        .then(|| bytes.saturating_mul(1_000) / second)
}

/// Opus in Ogg: the packets are counted, and the pages' own word is believed only if it is more.
fn ogg_length(data: &[u8]) -> Option<u64> {
    let (mut at, mut newest, mut samples, mut packets, mut opus) = (0_usize, 0_u64, 0_u64, 0_u64, false);
    while data.get(at..at + 4) == Some(b"OggS") {
        let granule = read_u32_le(data, at + 6)? | read_u32_le(data, at + 10)? << 32;
        let count = usize::from(*data.get(at + 26)?);
        let segments = data.get(at + 27..at + 27 + count)?;
        let mut body = at + 27 + count;
        let mut begins = data.get(at + 5)? & 1 == 0;
        for segment in segments {
            if begins {
                let packet = data.get(body..).unwrap_or_default();
                match packets {
                    0 => opus = packet.starts_with(b"OpusHead"),
                    1 => {}
                    _ => samples = samples.saturating_add(opus_samples(packet)),
                }
                packets += 1;
            }
            begins = *segment < 255;
            body += usize::from(*segment);
        }
        // -1 on a page on which no packet ends.
        if granule != u64::MAX {
            newest = newest.max(granule);
        }
        at = body;
    }
    opus.then(|| samples.max(newest).saturating_mul(1_000) / OPUS_RATE)
}

/// Samples of an Opus packet, by its first bytes (RFC 6716, 3.1).
fn opus_samples(packet: &[u8]) -> u64 {
    let Some(first) = packet.first() else { return 0 };
    let samples = match first >> 3 {
        config @ 0..=11 => [480, 960, 1_920, 2_880].get(usize::from(config & 3)).copied(),
        config @ 12..=15 => [480, 960].get(usize::from(config & 1)).copied(),
        config => [120, 240, 480, 960].get(usize::from(config & 3)).copied(),
    };
    let count = match first & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => u64::from(packet.get(1).copied().unwrap_or_default() & 0x3F),
    };
    samples.unwrap_or(960) * count
}

/// The newest time of a WebM file's clusters (Matroska: the id of a cluster, its size, then its time).
fn webm_length(data: &[u8]) -> Option<u64> {
    const CLUSTER: [u8; 4] = [0x1F, 0x43, 0xB6, 0x75];
    const TIME: u8 = 0xE7;
    let (mut newest, mut clusters) = (0_u64, 0_u64);
    for (at, _) in data
        .windows(CLUSTER.len())
        .enumerate()
        .filter(|(_, window)| *window == CLUSTER)
    {
        let rest = data.get(at + CLUSTER.len()..).unwrap_or_default();
        let size = rest.first().map_or(0, |first| first.leading_zeros() as usize + 1);
        let Some([TIME, length, time @ ..]) = rest.get(size..) else {
            continue;
        };
        if let (length @ 1..=8, true) = (usize::from(length & 0x7F), size <= 8)
            && let Some(digits) = time.get(..length)
        {
            let ms = digits.iter().fold(0_u64, |ms, digit| ms << 8 | u64::from(*digit));
            newest = newest.max(ms);
            clusters += 1;
        }
    }
    // A recording of one short cluster begins at zero: its bytes bound it, at the least that a recorder writes for a second.
    let by_bytes = u64::try_from(data.len()).ok()?.saturating_mul(1_000) / 3_000; // silent-ok: no file is so large
    (clusters > 0).then(|| {
        newest
            .saturating_add(by_bytes.min(30_000))
            .max(least_length(data))
    })
}

/// The least that so many bytes last: nobody records words with more than 64,000 bytes a second, whatever a header claims.
fn least_length(data: &[u8]) -> u64 {
    u64::try_from(data.len())
        .unwrap_or(u64::MAX)
        .saturating_mul(1_000)
        / 64_000
}

/// The longest that a header of an MP4 file says: of the file and of each track.
fn mp4_length(data: &[u8]) -> Option<u64> {
    let mut longest = 0;
    for (at, _) in data
        .windows(4)
        .enumerate()
        .filter(|(_, window)| *window == b"mvhd" || *window == b"mdhd")
        .take(MAX_BOXES)
    {
        let (scale, length) = match data.get(at + 4)? {
            0 => (read_u32_be(data, at + 16)?, read_u32_be(data, at + 20)?),
            _ => (read_u32_be(data, at + 24)?, read_u64_be(data, at + 28)?),
        };
        let ms = length.saturating_mul(1_000).checked_div(scale);
        longest = longest.max(ms.unwrap_or_default());
    }
    (longest > 0).then(|| longest.max(least_length(data)))
}

/// MPEG audio layer III: the frames are counted.
fn mp3_length(data: &[u8]) -> Option<u64> {
    let mut at = 0;
    if data.starts_with(b"ID3") {
        let size = data.get(6..10)?;
        at = 10
            + size
                .iter()
                .fold(0, |size, byte| size << 7 | usize::from(byte & 0x7F));
    }
    let mut micros = 0_u64;
    while let Some([0xFF, second, third, _]) = data.get(at..at + 4) {
        let version = second >> 3 & 3;
        if second & 0xE6 != 0xE2 || version == 1 {
            break;
        }
        let newer = version == 3;
        let table: [u64; 14] = if newer {
            [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]
        } else {
            [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160]
        };
        let rates: [u64; 3] = match version {
            3 => [44_100, 48_000, 32_000],
            2 => [22_050, 24_000, 16_000],
            _ => [11_025, 12_000, 8_000],
        };
        let bitrate = table.get(usize::from(third >> 4).checked_sub(1)?)?;
        let rate = rates.get(usize::from(third >> 2 & 3))?;
        let samples = if newer { 1_152 } else { 576 };
        let length = samples / 8 * bitrate * 1_000 / rate + u64::from(third >> 1 & 1);
        micros += samples * 1_000_000 / rate;
        at += usize::try_from(length).ok()?; // silent-ok: a frame is short
    }
    Some(micros / 1_000)
}

#[cfg(test)]
mod tests {
    use super::{measure_recording, opus_samples};

    /// Pages of one packet each, of 60 ms.
    pub(crate) fn opus(packets: u64, granule: u64) -> Vec<u8> {
        let page = |packet: &[u8], granule: u64| {
            let mut page = b"OggS\0\0".to_vec();
            page.extend(granule.to_le_bytes());
            page.extend([0; 12]);
            page.extend([1, u8::try_from(packet.len()).unwrap()]);
            page.extend(packet);
            page
        };
        let mut all = page(b"OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0", 0);
        all.extend(page(b"OpusTags", 0));
        for n in 0..packets {
            let last = n + 1 == packets;
            all.extend(page(&[3 << 3, 1], if last { granule } else { 0 }));
        }
        all
    }

    #[test]
    fn an_opus_file_is_as_long_as_its_packets_whatever_its_pages_claim() {
        assert_eq!(
            measure_recording(&opus(200, 576_000)),
            Some(("audio/ogg", 12_000))
        );
        assert_eq!(
            measure_recording(&opus(200, 1)),
            Some(("audio/ogg", 12_000)),
            "a claim of less"
        );
        assert_eq!(
            measure_recording(&opus(1, 48_000 * 7_200)),
            Some(("audio/ogg", 7_200_000))
        );
        assert_eq!(opus_samples(&[0b0001_1011, 48]), 2_880 * 48);
        let mut vorbis = opus(2, 480);
        vorbis[28..36].copy_from_slice(b"\x01vorbis\0");
        assert_eq!(measure_recording(&vorbis), None, "another sound in it");
    }

    #[test]
    fn other_formats_say_their_length_or_are_not_understood() {
        let mut wav = b"RIFF\0\0\0\0WAVEfmt ".to_vec();
        wav.resize(44, 0);
        wav[28..32].copy_from_slice(&32_000_u32.to_le_bytes());
        wav.resize(44 + 64_000, 0);
        assert_eq!(measure_recording(&wav), Some(("audio/wav", 2_000)));
        wav[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(measure_recording(&wav), None);
        let mut mp4 = b"\0\0\0\x18ftypM4A \0\0\0\0".to_vec();
        mp4.extend(b"\0\0\0\x6cmvhd\0\0\0\0\0\0\0\0\0\0\0\0");
        mp4.extend(1_000_u32.to_be_bytes());
        mp4.extend(7_200_000_u32.to_be_bytes());
        assert_eq!(measure_recording(&mp4), Some(("audio/mp4", 7_200_000)));
        // 417 bytes of 128 kbit/s at 44.1 kHz.
        let mut mp3 = Vec::new();
        for _ in 0..100 {
            mp3.extend([0xFF, 0xFB, 0x90, 0x00]);
            mp3.resize(mp3.len() + 413, 0);
        }
        assert_eq!(measure_recording(&mp3), Some(("audio/mpeg", 2_612)));
        for other in [
            &b"#!AMR\n"[..],
            b"fLaC",
            b"\x89PNG\r\n\x1a\n",
            b"",
            b"OggS",
            b"\x1A\x45\xDF\xA3",
        ] {
            assert_eq!(measure_recording(other), None);
        }
    }
}
