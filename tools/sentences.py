"""Sentences in each language of the model: the same two everywhere, written for this project."""

from __future__ import annotations

SENTENCES = {
    "Chinese": "明天早上的火车七点一刻开，请带上车票、喝的和一件暖和的外套。海边会很冷，我们要到晚上才回家。",
    "English": (
        "The train leaves at a quarter past seven tomorrow morning, so please bring the tickets, something to "
        "drink and a warm coat. It will be cold by the sea, and we won't be home before evening."
    ),
    "Cantonese": "聽朝嘅火車七點一個骨開，記得帶車飛、飲嘅嘢同一件暖啲嘅褸。海邊會好凍，我哋夜晚先至返屋企。",
    "Arabic": (
        "يغادر القطار صباح غد في الساعة السابعة والربع، فأحضروا من فضلكم التذاكر وشيئا للشرب ومعطفا دافئا. سيكون "
        "الجو باردا عند البحر، ولن نعود إلى البيت قبل المساء."
    ),
    "German": (
        "Der Zug fährt morgen früh um Viertel nach sieben, also bring bitte die Fahrkarten, etwas zu trinken und "
        "einen warmen Mantel mit. Am Meer wird es kalt, und wir sind nicht vor dem Abend zu Hause."
    ),
    "French": (
        "Le train part demain matin à sept heures et quart, alors apporte s'il te plaît les billets, quelque "
        "chose à boire et un manteau chaud. Il fera froid au bord de la mer, et nous ne rentrerons pas avant le "
        "soir."
    ),
    "Spanish": (
        "El tren sale mañana por la mañana a las siete y cuarto, así que trae por favor los billetes, algo de "
        "beber y un abrigo. Hará frío junto al mar, y no volveremos a casa antes de la noche."
    ),
    "Portuguese": (
        "O comboio parte amanhã de manhã às sete e um quarto, por isso traz por favor os bilhetes, alguma coisa "
        "para beber e um casaco quente. Vai estar frio junto ao mar, e não voltamos a casa antes da noite."
    ),
    "Indonesian": (
        "Kereta berangkat besok pagi pukul tujuh lewat seperempat, jadi tolong bawa tiketnya, minuman dan jaket "
        "yang hangat. Di tepi laut akan dingin, dan kita baru pulang malam hari."
    ),
    "Italian": (
        "Il treno parte domattina alle sette e un quarto, quindi porta per favore i biglietti, qualcosa da bere "
        "e un cappotto pesante. Al mare farà freddo, e non torneremo a casa prima di sera."
    ),
    "Korean": (
        "내일 아침 기차가 일곱 시 십오 분에 떠나니까 표와 마실 것과 따뜻한 외투를 가져오세요. 바닷가는 추울 "
        "거고, 우리는 저녁이 되어서야 집에 돌아올 거예요."
    ),
    "Russian": (
        "Поезд отправляется завтра утром в четверть восьмого, так что возьми, пожалуйста, билеты, что-нибудь "
        "попить и тёплое пальто. У моря будет холодно, и домой мы вернёмся только вечером."
    ),
    "Thai": (
        "รถไฟจะออกพรุ่งนี้เช้าตอนเจ็ดโมงสิบห้านาที ช่วยเอาตั๋ว เครื่องดื่ม และเสื้อกันหนาวมาด้วยนะ ที่ชายทะเลอากา"
        "ศจะหนาว และเราจะกลับถึงบ้านตอนค่ำ"
    ),
    "Vietnamese": (
        "Sáng mai tàu chạy lúc bảy giờ mười lăm phút, nên bạn nhớ mang theo vé, đồ uống và một chiếc áo khoác "
        "ấm. Ngoài biển sẽ lạnh, và đến tối chúng ta mới về nhà."
    ),
    "Japanese": (
        "明日の朝、電車は七時十五分に出ますから、切符と飲み物と暖かいコートを持ってきてください。海辺は寒くなりま"
        "すし、家に帰るのは夜になります。"
    ),
    "Turkish": (
        "Tren yarın sabah yediyi çeyrek geçe kalkıyor, bu yüzden lütfen biletleri, içecek bir şeyi ve sıcak "
        "tutan bir paltoyu getir. Deniz kenarı soğuk olacak ve akşamdan önce eve dönmeyeceğiz."
    ),
    "Hindi": (
        "गाड़ी कल सुबह सवा सात बजे छूटती है, इसलिए कृपया टिकट, पीने के लिए कुछ और एक गर्म कोट साथ लाइए। समुद्र "
        "के किनारे ठंड होगी, और हम शाम से पहले घर नहीं लौटेंगे।"
    ),
    "Malay": (
        "Kereta api bertolak pagi esok pada pukul tujuh suku, jadi tolong bawa tiket, sesuatu untuk diminum dan "
        "baju panas. Di tepi laut cuaca sejuk, dan kita tidak akan pulang sebelum malam."
    ),
    "Dutch": (
        "De trein vertrekt morgenochtend om kwart over zeven, dus neem alsjeblieft de kaartjes, iets te drinken "
        "en een warme jas mee. Aan zee wordt het koud, en we zijn niet voor de avond thuis."
    ),
    "Swedish": (
        "Tåget går i morgon bitti kvart över sju, så ta med biljetterna, något att dricka och en varm jacka. Det "
        "blir kallt vid havet, och vi är inte hemma före kvällen."
    ),
    "Danish": (
        "Toget kører i morgen tidlig klokken kvart over syv, så tag billetterne, noget at drikke og en varm "
        "frakke med. Der bliver koldt ved havet, og vi er ikke hjemme før om aftenen."
    ),
    "Finnish": (
        "Juna lähtee huomenaamulla vartin yli seitsemän, joten ota mukaan liput, jotain juotavaa ja lämmin "
        "takki. Meren rannalla on kylmä, emmekä ole kotona ennen iltaa."
    ),
    "Polish": (
        "Pociąg odjeżdża jutro rano kwadrans po siódmej, więc weź proszę bilety, coś do picia i ciepły płaszcz. "
        "Nad morzem będzie zimno, a do domu wrócimy dopiero wieczorem."
    ),
    "Czech": (
        "Vlak odjíždí zítra ráno ve čtvrt na osm, tak prosím vezmi jízdenky, něco k pití a teplý kabát. U moře "
        "bude zima a domů se vrátíme až večer."
    ),
    "Filipino": (
        "Aalis ang tren bukas ng umaga nang alas siyete y kinse, kaya pakidala ang mga tiket, inumin at isang "
        "makapal na dyaket. Malamig sa tabing-dagat, at gabi na tayo makakauwi."
    ),
    "Persian": (
        "قطار فردا صبح ساعت هفت و ربع حرکت می‌کند، پس لطفا بلیت‌ها، چیزی برای نوشیدن و یک پالتوی گرم بیاور. کنار "
        "دریا هوا سرد است و ما پیش از شب به خانه برنمی‌گردیم."
    ),
    "Greek": (
        "Το τρένο φεύγει αύριο το πρωί στις επτά και τέταρτο, γι' αυτό φέρε σε παρακαλώ τα εισιτήρια, κάτι να "
        "πιούμε και ένα ζεστό παλτό. Στη θάλασσα θα κάνει κρύο και δεν θα γυρίσουμε σπίτι πριν από το βράδυ."
    ),
    "Romanian": (
        "Trenul pleacă mâine dimineață la șapte și un sfert, așa că adu te rog biletele, ceva de băut și o haină "
        "groasă. La mare va fi frig, și nu ne întoarcem acasă înainte de seară."
    ),
    "Hungarian": (
        "A vonat holnap reggel negyed nyolckor indul, ezért kérlek, hozd a jegyeket, valami innivalót és egy "
        "meleg kabátot. A tengernél hideg lesz, és csak este érünk haza."
    ),
    "Macedonian": (
        "Возот тргнува утре наутро во седум и петнаесет, затоа те молам донеси ги билетите, нешто за пиење и "
        "топло палто. Покрај морето ќе биде студено, а дома ќе се вратиме дури навечер."
    ),
}
