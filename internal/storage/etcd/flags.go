package etcd

import (
	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// Cluster identifies an etcd cluster and the part of it that the store uses.
type Cluster struct {
	Servers  []string // URLs
	CAFile   string   // CA of the servers' certificates; "" means the system's CAs
	CertFile string   // client certificate, with KeyFile; "" means none
	KeyFile  string
	Prefix   string // replaces Options.Base at the beginning of all keys in etcd
	MaxOps   int    // maximum number of keys in a commit; 0 means 128
	MaxBytes int    // maximum size of a commit in bytes; 0 means 1.5 MiB
}

// Defaults of etcd's flags --max-txn-ops and --max-request-bytes.
const (
	defaultMaxOps   = 128
	defaultMaxBytes = 1.5 * 1024 * 1024
)

// AddFlags declares the flags.
func (c *Cluster) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Servers, "etcd-servers", nil,
		"URLs of an etcd cluster that stores the objects instead of the data directory. Several servers may use the "+
			"cluster")
	fs.StringVar(&c.CAFile, "etcd-cafile", "",
		"file of the CA that signed the serving certificates of etcd")
	fs.StringVar(&c.CertFile, "etcd-certfile", "", "file of the client certificate for etcd")
	fs.StringVar(&c.KeyFile, "etcd-keyfile", "", "file of the private key of --etcd-certfile")
	flags.Pair(fs, "etcd-certfile", "etcd-keyfile")
	fs.StringVar(&c.Prefix, "etcd-prefix", "/registry", "prefix of all keys in etcd except compact_rev_key")
	fs.IntVar(&c.MaxOps, "etcd-max-txn-ops", defaultMaxOps,
		"maximum number of objects in a write, as in etcd's flag --max-txn-ops")
	fs.IntVar(&c.MaxBytes, "etcd-max-request-bytes", defaultMaxBytes,
		"maximum size of a write in bytes, as in etcd's flag --max-request-bytes")
}
