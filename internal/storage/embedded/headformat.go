package embedded

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

// head is the content of HEAD, a small file beside the engine. It contains a durable revision and the number of
// the engine's newest log file. Both a crash and a damaged disk leave a torn record at the end of a log. HEAD
// distinguishes the two, because everything up to its revision was synced before HEAD was written.
type head struct {
	tally        // the field bytes is not stored and therefore 0
	log   uint64 // number of the log file; 0 means none is recorded
}

// encode returns the content of the file.
func (h head) encode() []byte {
	text := fmt.Sprintf(headFormat, h.revision, h.live, h.digest, h.log)
	return fmt.Appendf(nil, "%s checksum %08x\n", text, crc32.Checksum([]byte(text), castagnoli))
}

// parseHead decodes the content of the file.
func parseHead(text string) (h head, err error) {
	body, sum, _ := strings.Cut(text, " checksum ")
	if sum != fmt.Sprintf("%08x\n", crc32.Checksum([]byte(body), castagnoli)) {
		return head{}, errChecksum
	}
	format, fields := headFormat, []any{&h.revision, &h.live, &h.digest, &h.log}
	if !strings.Contains(body, " log ") {
		format, fields = headFormatV1, fields[:3]
	}
	_, err = fmt.Sscanf(body, format, fields...)
	return h, err
}
