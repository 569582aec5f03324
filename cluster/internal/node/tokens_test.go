package node

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/apiserver"
)

// KON-042 EXT-022: a token in a volume is renewed before it expires, for the same audience and Pod, and the container finds the new one.
func TestTokenIsRenewed(t *testing.T) {
	// Less than the flag allows: so short-lived that the node is to renew it whenever it looks.
	w := newWorld(t, func(c *apiserver.Config) { c.Authentication.Accounts.MaxExpiration = 5 * time.Second })
	w.start(w.options("tokens"))
	w.ready("tokens")
	w.pod("tokens", "main", func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault", Path: "token", ExpirationSeconds: ptr.To[int64](600)},
		}}}}}}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/tokens"}}
	})
	file := mounted(t, w.of(w.running("main"))[0], "/tokens/token")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	looks := 0
	w.within("another token takes its place, and is good", func(ctx context.Context) bool {
		looks++ // a Pod that changes is looked at, as each is from time to time
		change := []byte(`{"metadata": {"annotations": {"looks": "` + strconv.Itoa(looks) + `"}}}`)
		if _, err := w.kube.CoreV1().Pods("default").Patch(ctx, "main", types.MergePatchType, change, metav1.PatchOptions{}); err != nil {
			return false
		}
		next, err := os.ReadFile(file)
		if err != nil || string(next) == string(first) {
			return false
		}
		review, err := w.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: string(next), Audiences: []string{"vault"}},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Authenticated && review.Status.User.Extra["authentication.kubernetes.io/pod-name"][0] == "main"
	})
}
