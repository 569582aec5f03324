package storage

import "strings"

// Codec converts values between the JSON of the Store interface and their form in the log. Both functions get the
// key, so that they can reject a value that was stored under another key. A nil function leaves values unchanged.
type Codec struct {
	Seal func(key string, value []byte) ([]byte, error)
	Open func(key string, data []byte) ([]byte, error)
}

// Codecs maps prefixes of keys to their codecs. The longest matching prefix applies.
type Codecs map[string]Codec

func (c Codecs) of(key string) (found Codec) {
	longest := -1
	for prefix, codec := range c {
		if len(prefix) > longest && strings.HasPrefix(key, prefix) {
			longest, found = len(prefix), codec
		}
	}
	return found
}

// Seal converts a value to the form that is written to the log.
func (c Codecs) Seal(key string, value []byte) ([]byte, error) {
	if seal := c.of(key).Seal; seal != nil {
		return seal(key, value)
	}
	return value, nil
}

// Open converts data read from the log to a value.
func (c Codecs) Open(key string, data []byte) ([]byte, error) {
	if open := c.of(key).Open; open != nil {
		return open(key, data)
	}
	return data, nil
}
