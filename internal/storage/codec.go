package storage

import "strings"

// Codec is how values lie in a log, while JSON crosses the contract. It is told the key, so that a value in another
// place than its own can be refused. The zero value leaves values as they are.
type Codec struct {
	Seal func(key string, value []byte) ([]byte, error)
	Open func(key string, data []byte) ([]byte, error)
}

// Codecs are those of keys with a prefix. The longest prefix that fits counts.
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

// Seal returns what the log is to hold for a value.
func (c Codecs) Seal(key string, value []byte) ([]byte, error) {
	if seal := c.of(key).Seal; seal != nil {
		return seal(key, value)
	}
	return value, nil
}

// Open returns the value of what the log holds.
func (c Codecs) Open(key string, data []byte) ([]byte, error) {
	if open := c.of(key).Open; open != nil {
		return open(key, data)
	}
	return data, nil
}
