"""Reports wait for each other, so that the streams beside them are not kept waiting."""

import threading
from concurrent.futures import ThreadPoolExecutor

from django.test import RequestFactory
from rest_framework.response import Response

from proxy.reports.base import AT_ONCE, ReportView

ASKED = 3 * AT_ONCE


class SlowView(ReportView):
    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()
    together = threading.Barrier(AT_ONCE)  # nobody goes on before so many are in
    lock = threading.Lock()
    inside = most = 0

    def get(self, request):
        with self.lock:
            SlowView.inside += 1
            SlowView.most = max(self.most, self.inside)
        self.together.wait(60)
        with self.lock:
            SlowView.inside -= 1
        return Response({})


def test_so_many_are_computed_at_once_and_no_more():
    ask = SlowView.as_view()
    with ThreadPoolExecutor(ASKED) as pool:
        answers = [pool.submit(ask, RequestFactory().get("/")) for _ in range(ASKED)]
        statuses = [each.result(120).status_code for each in answers]

    assert statuses == [200] * ASKED
    assert SlowView.most == AT_ONCE
