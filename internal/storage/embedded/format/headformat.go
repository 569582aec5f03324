package format

import (
	"fmt"
	"hash/crc32"
	"strings"
)

// Formats of HEAD without its checksum. The previous version did not record a log file.
const (
	headFormat   = "revision %d records %d digest %016x log %06d"
	headFormatV1 = "revision %d records %d digest %016x"
)

// Head is the content of HEAD, a small file beside the engine. It contains a durable revision and the number of
// the engine's newest log file. Both a crash and a damaged disk leave a torn record at the end of a log. HEAD
// distinguishes the two, because everything up to its revision was synced before HEAD was written.
type Head struct {
	Tally        // the field bytes is not stored and therefore 0
	Log   uint64 // number of the log file; 0 means none is recorded
}

// Encode returns the content of the file.
func (h Head) Encode() []byte {
	text := fmt.Sprintf(headFormat, h.Revision, h.Live, h.digest, h.Log)
	return fmt.Appendf(nil, "%s checksum %08x\n", text, crc32.Checksum([]byte(text), castagnoli))
}

// ParseHead decodes the content of the file.
func ParseHead(text string) (h Head, err error) {
	body, sum, _ := strings.Cut(text, " checksum ")
	if sum != fmt.Sprintf("%08x\n", crc32.Checksum([]byte(body), castagnoli)) {
		return Head{}, errChecksum
	}
	format, fields := headFormat, []any{&h.Revision, &h.Live, &h.digest, &h.Log}
	if !strings.Contains(body, " log ") {
		format, fields = headFormatV1, fields[:3]
	}
	_, err = fmt.Sscanf(body, format, fields...)
	return h, err
}
